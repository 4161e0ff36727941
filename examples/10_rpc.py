"""Offer procedures of the four kinds over River, and call each."""

from __future__ import annotations

from collections.abc import Iterator

from wsmux import rpc

words = rpc.Service("words")
TEXT = {"type": "string"}


@words.rpc(init=TEXT, response={"type": "integer"})
def length(ctx: rpc.Context, init: str) -> int:
    return len(init)


@words.subscription(init=TEXT, response=TEXT)
def letters(ctx: rpc.Context, init: str) -> Iterator[str]:
    yield from init


@words.upload(request=TEXT, response=TEXT)
def join(ctx: rpc.Context, init: None, requests: rpc.Readable[str]) -> str:
    return " ".join(requests)


@words.stream(request=TEXT, response=TEXT, errors=[rpc.ErrorSchema("NO_WORD")])
def translate(ctx: rpc.Context, init: dict[str, str], requests: rpc.Readable[str]) -> Iterator[str]:
    for word in requests:
        if word not in init:
            raise rpc.RiverError("NO_WORD", f"{word} is not in the dictionary")
        yield init[word]


with rpc.serve([words]) as server, rpc.connect(server.url, schema=[words]) as client:
    print(client.words.length("River", timeout=5))
    print(list(client.words.letters("abc", timeout=5)))

    with client.words.join(timeout=5) as upload:
        for word in ("one", "at", "a", "time"):
            upload.write(word)
        print(upload.finish())

    with client.words.translate({"eins": "one"}, timeout=5) as stream:
        for word in ("eins", "zwei"):
            stream.write(word)
            try:
                print(stream.read())
            except rpc.RiverError as error:
                print(error.code, "-", error.message)

# Output:
# 5
# ['a', 'b', 'c']
# one at a time
# one
# NO_WORD - zwei is not in the dictionary
