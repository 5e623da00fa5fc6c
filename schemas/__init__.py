"""What goes over the wire and into tables: headers, receipts, rows. Pure: no input, no output."""
