from schemas.chunks import chunks


def test_chunks_keep_to_number_and_bytes() -> None:
    sizes = [10, 10, 10, 99, 1, 1]
    assert list(chunks(sizes, int, most_bytes=25, most=2)) == [[10, 10], [10], [99], [1, 1]]
    assert list(chunks(sizes, int, most_bytes=30)) == [[10, 10, 10], [99], [1, 1]]
    assert list(chunks([], int, most_bytes=30)) == []
