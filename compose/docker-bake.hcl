# The images, on a base with its digest, for two architectures, with provenance and a bill of materials:
#
#     make bake ARGS=--print
#     make bake REPOSITORY=registry.example/timer-bridge TAG=0.2.0 ARGS=--push
#
# `make images` writes the digest of BASE into .env. With --push the builder has to be one of docker-container.

variable "BASE" {
  validation {
    condition     = length(regexall("@sha256:[0-9a-f]{64}$", BASE)) == 1
    error_message = "BASE: no digest; run `make images`."
  }
}
variable "REPOSITORY" { default = "timer-bridge" }
variable "TAG" { default = "latest" }

group "default" { targets = ["bridge", "audit"] }

target "image" {
  context    = "."
  dockerfile = "compose/bridge/Dockerfile"
  args       = { BASE = BASE }
  platforms  = ["linux/amd64", "linux/arm64"]
  attest     = ["type=provenance,mode=max", "type=sbom"]
}

target "bridge" {
  inherits = ["image"]
  target   = "bridge"
  tags     = ["${REPOSITORY}:${TAG}"]
}

target "audit" {
  inherits = ["image"]
  target   = "audit"
  tags     = ["${REPOSITORY}-audit:${TAG}"]
}
