"""What a verification says: where the first fault lies, or how much was looked at; and notes, which are no faults."""

from dataclasses import dataclass, field

from timer.disk import Disk, File


@dataclass(frozen=True, slots=True)
class Fault:
    """`at`: byte of the file, None where the whole file is meant. `field`: empty where it cannot be told."""

    file: str
    at: int | None
    field: str
    what: str

    def __str__(self) -> str:
        place = [self.file]
        if self.at is not None:
            place.append(f"byte {self.at}")
        if self.field:
            place.append(f"field {self.field!r}")
        return f"{', '.join(place)}: {self.what}"


class FaultError(Exception):
    """Ends a verification at its first fault."""

    def __init__(self, file: str, at: int | None, field: str, what: str) -> None:
        self.fault = Fault(file, at, field, what)
        super().__init__(str(self.fault))


@dataclass(slots=True)
class Verified:
    """`closed`: the store was closed as its checkpoint tells it, so that the wheel has to fit too."""

    fault: Fault | None = None
    notes: list[str] = field(default_factory=list)
    closed: bool = False
    files: int = 0
    frames: int = 0
    units: int = 0
    """Of them, `markers` are no timers, and `live` are pending."""
    markers: int = 0
    live: int = 0
    ticks: int = 0
    """Of the wheel, those that hold live units."""

    def __str__(self) -> str:
        return (
            f"{self.live} live timers in {self.ticks} ticks, {self.units} units ({self.markers} markers),"
            f" {self.frames} frames, {self.files} files"
        )


def field_at(offsets: dict[str, int], at: int) -> str:
    """Which field the byte `at` of a record is in: the last that begins there or before it; an empty one has none."""
    return max((begin, order, name) for order, (name, begin) in enumerate(offsets.items()) if begin <= at)[2]


class Folder:
    """The files of one log, by the position of their first byte."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self.folder = folder
        self.bases: list[int] = []
        for name in disk.names(folder):
            if not (name.isdecimal() and name.isascii() and name == f"{int(name):020d}"):
                raise FaultError(f"{folder}/{name}", None, "", "a file that is not ours")
            self.bases.append(int(name))

    def name(self, base: int) -> str:
        return f"{self.folder}/{base:020d}"

    def open(self, base: int) -> File:
        return self._disk.open(self.name(base))

    def size(self, base: int) -> int:
        file = self.open(base)
        size = file.size()
        file.close()
        return size
