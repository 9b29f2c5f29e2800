"""Files changed at random, the same for the same seed: JSON by structure, others by bytes."""

from __future__ import annotations

import copy
import json

STRANGE = (
    *(None, True, False, 0, 1, -1, 2, 7, 0.5, -0.0, 1e308, 2**31, 2**63, 10**30, -(10**30)),
    *("", "x", "nan", "inf", "0", "\x1b[2J", "é🪵", "x" * 1000, "../..", "hidden1", "float32"),
    *([], {}, [[]], [{}], {"a": 1}, [None], [0, 1], ["x"], [1e308] * 40, {"build": "mlp"}),
)


def places(value, path=()):
    """Every place in a JSON value, as the keys that lead there."""
    yield path
    keys = value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    for key in keys:
        yield from places(value[key], (*path, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value


def mutated(value, dice):
    """A JSON value with one to three changes."""
    value = copy.deepcopy(value)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        path = dice.choice(list(places(value)))
        if not path:
            continue
        holder, key = at(value, path[:-1]), path[-1]
        match dice.randrange(7):
            case 0 | 1:
                holder[key] = copy.deepcopy(dice.choice(STRANGE))
            case 2:
                del holder[key]
            case 3:
                holder[key] = copy.deepcopy(at(value, dice.choice(list(places(value)))))
            case 4:
                holder[key] = [holder[key]] * dice.choice((1, 2, 50))
            case 5 if isinstance(holder, dict):
                holder[str(dice.choice(STRANGE))[:40]] = holder.pop(key)
            case 5 | 6 if isinstance(holder[key], int | float):
                holder[key] = holder[key] * dice.choice((-1, 2, 1000, 10**9)) + dice.choice((0, 1))
            case _:
                holder[key] = {str(key): holder[key]}
    return value


def scratched(data, dice):
    """Bytes with a few of them exchanged, missing, or too many."""
    data = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 8))):
        place = dice.randrange(len(data) + 1)
        match dice.randrange(4):
            case 0:
                del data[place : place + dice.choice((1, 8, 1000))]
            case 1:
                data[place:place] = bytes(dice.randrange(256) for _ in range(dice.choice((1, 8))))
            case _ if place < len(data):
                data[place] ^= 1 << dice.randrange(8)
    return bytes(data)


def json_file(data, dice):
    """The bytes of a JSON file, changed by structure or, now and then, by bytes."""
    if dice.random() < 0.15:
        return scratched(data, dice)
    return json.dumps(mutated(json.loads(data), dice), indent=2, sort_keys=True).encode() + b"\n"


def tensor_file(data, dice):
    """The bytes of a safetensors file whose header, or JSON within the header, was changed."""
    length = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + length]), data[8 + length :]
    kept = header.get("__metadata__", {}).get("dovetail")
    choice = dice.random()
    if choice < 0.1:
        return scratched(data, dice)
    if kept is not None and choice < 0.7:
        header["__metadata__"]["dovetail"] = json.dumps(mutated(json.loads(kept), dice))
    elif choice < 0.85:
        names = [name for name in header if name != "__metadata__"]
        one, other = dice.choice(names), dice.choice(names)
        match dice.randrange(3):
            case 0:
                header[one], header[other] = header[other], header[one]
            case 1:
                header[f"{one}x"] = header.pop(one)
            case _:
                header[one]["shape"] = [*header[one]["shape"], 1]
    else:
        header = mutated(header, dice)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + rest
