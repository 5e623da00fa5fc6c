"""What a load needs: the model behind docs/capacity.md and `timer-bridge size`."""
