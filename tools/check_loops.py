#!/usr/bin/env python3
"""Fails if an inner loop of a matrix kernel touches the stack: one accumulator that is spilled halves its speed.

usage: check_loops.py OBJECT...      check_loops.py --self-test

Reads the disassembly of the objects of the instruction sets. An inner loop is the code between a jump backwards and
its target with no other such jump inside; it is a matrix loop if nearly half of its instructions multiply and add,
which exponentials and transposes do not reach, or if it has products of 8-bit numbers. In such a loop no vector may be
loaded from or stored to the stack.
A function with products of matrix tiles has a loop that loads at most one tile more than it multiplies: more would
starve them. What vectors sum between the products of such a loop stays in registers: no place on the stack is read
before the loop has written it, and written later. The kernels of one row, and those that move rows, ask for rows
ahead: a compiler that takes asking for nothing drops it, and from memory they are half as quick. An object without any
matrix loop fails too: then the vectors are gone, or this check is blind.
"""

import re
import subprocess
import sys

INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+([a-z]\S*)\s*(.*?)\s*(?:#.*|<.*>)?$")
FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
MULTIPLY_ADD = re.compile(r"^(vfn?m(add|sub)\d+[sp][sd]|vdpbf16ps|mulp[sd]|addp[sd])$")
CODE_PRODUCT = re.compile(r"^(vpdpbusd|vpmaddwd)$")  # of weights of 8 and 4 bits
TILE_PRODUCT = re.compile(r"^tdp(bf16|fp16)ps$")
STACK_VECTOR = re.compile(r"\(%r[sb]p\).*%[xyz]mm|%[xyz]mm.*\(%r[sb]p\)")
STACK_PLACE = re.compile(r"-?(?:0x[0-9a-f]+)?\(%r[sb]p\)")
ASKING = re.compile(r"\b(scores_single_apart|values_single|pack_panel_of|unpack_panel_of|store_rows_of|dot_rows_of)<")
PREFETCH = re.compile(r"^(prefetch|prfm)")
LEAST_SHARE = 0.45  # of multiply-adds; the tiles have 0.5 (12 of 24 in AVX2) to 0.7, the exponentials up to 0.37
LEAST_MULTIPLY_ADDS = 8  # a smaller loop is a remainder
LEAST_TILE_PRODUCTS = 4  # the same for tiles


def functions(text):
    """Yields (name, [(address, mnemonic, operands)])."""
    name, body = None, []
    for line in text.splitlines():
        if match := FUNCTION.match(line):
            if body:
                yield name, body
            name, body = match.group(1), []
        elif match := INSTRUCTION.match(line):
            body.append((int(match.group(1), 16), match.group(2), match.group(3)))
    if body:
        yield name, body


def inner_loops(body):
    """Yields the instructions of every loop that has no loop inside."""
    place = {address: index for index, (address, _, _) in enumerate(body)}
    jumps = []
    for index, (address, mnemonic, operands) in enumerate(body):
        if mnemonic.startswith("j") and re.fullmatch(r"[0-9a-f]+", operands.split(" ")[0]):
            target = int(operands.split(" ")[0], 16)
            if target < address and target in place:
                jumps.append((place[target], index))
    for first, last in jumps:
        if not any(first <= a and b < last for a, b in jumps):
            yield body[first : last + 1]


def tile_loads_and_products(loop):
    names = [mnemonic for _, mnemonic, _ in loop]
    products = sum(bool(TILE_PRODUCT.match(name)) for name in names)
    return names.count("tileloadd") + names.count("tileloaddt1"), products


def carried_in_memory(loop):
    """Places on the stack from which one round of the loop hands a whole vector to the next."""
    first_is_read, carried = {}, []
    for _, mnemonic, operands in loop:
        if "%zmm" not in operands or not (place := STACK_PLACE.search(operands)):
            continue
        place, written = place.group(0), operands.endswith(place.group(0))
        if first_is_read.setdefault(place, not written) and written:
            carried.append(place)
    return carried


def problems(text):
    """Returns (number of matrix loops, [what is wrong])."""
    loops, found = 0, []
    for name, body in functions(text):
        if ASKING.search(name) and not any(PREFETCH.match(mnemonic) for _, mnemonic, _ in body):
            found.append(f"{name}: asks for no rows ahead")
        on_tiles = []
        for loop in inner_loops(body):
            loads, products = tile_loads_and_products(loop)
            if products >= LEAST_TILE_PRODUCTS:
                on_tiles.append(loads - products)
                if carried := carried_in_memory(loop):
                    found.append(
                        f"{name}: the loop at {loop[0][0]:x} ({products} tile products) keeps {len(carried)} vectors "
                        f"on the stack, as in {carried[0]}"
                    )
                continue
            work = sum(bool(MULTIPLY_ADD.match(mnemonic)) for _, mnemonic, _ in loop)
            codes = sum(bool(CODE_PRODUCT.match(mnemonic)) for _, mnemonic, _ in loop)
            if codes < LEAST_MULTIPLY_ADDS and (work < LEAST_MULTIPLY_ADDS or work < LEAST_SHARE * len(loop)):
                continue
            loops += 1
            touching = [f"{mnemonic} {operands}" for _, mnemonic, operands in loop if STACK_VECTOR.search(operands)]
            if touching:
                found.append(
                    f"{name}: the loop at {loop[0][0]:x} ({work + codes} multiply-adds of {len(loop)} instructions) "
                    f"touches the stack {len(touching)} times, as in '{touching[0]}'"
                )
        loops += len(on_tiles)
        if on_tiles and min(on_tiles) > 1:
            found.append(f"{name}: every loop loads at least {min(on_tiles)} tiles more than it multiplies")
    return loops, found


def check(path):
    command = ["objdump", "--disassemble", "--demangle", "--no-show-raw-insn", path]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    loops, found = problems(text)
    if loops == 0:
        found.append("no matrix loop was found")
    for problem in found:
        print(f"{path}: {problem}")
    return not found


def self_test():
    clean = "0 <tile>:\n" + "".join(
        f"   {4 * i:x}:\tvfmadd231ps %zmm{i},%zmm1,%zmm2\n" for i in range(1, 13)
    ) + "   40:\tjne    4 <tile+0x4>\n"
    spilled = clean.replace("vfmadd231ps %zmm5,", "vfmadd231ps 0x40(%rsp),")
    assert problems(clean) == (1, []), problems(clean)
    assert len(problems(spilled)[1]) == 1, problems(spilled)
    assert problems(clean.replace("jne    4", "jne    80")) == (0, [])
    one_row = clean.replace("<tile>", "<void attn::kernels::values_single<F32, 0>(Args const&)>")
    assert len(problems(one_row)[1]) == 1, problems(one_row)
    asking = one_row.replace("vfmadd231ps %zmm5,%zmm1,%zmm2", "prefetcht1 (%rax)")
    assert problems(asking) == (1, []), problems(asking)
    tiles = clean.replace("vfmadd231ps %zmm5,%zmm1,%zmm2", "tileloadd (%rax,%rbx,1),%tmm4")
    tiles = re.sub(r"vfmadd231ps \S+", "tdpbf16ps %tmm6,%tmm4,%tmm0", tiles)
    assert problems(tiles) == (1, []), problems(tiles)
    summed = tiles.replace("tdpbf16ps %tmm6,%tmm4,%tmm0", "vaddps 0x40(%rsp),%zmm1,%zmm1", 1)
    assert problems(summed) == (1, []), problems(summed)  # a constant
    in_memory = summed[::-1].replace("tdpbf16ps %tmm6,%tmm4,%tmm0"[::-1], "vmovaps %zmm1,0x40(%rsp)"[::-1], 1)[::-1]
    assert len(problems(in_memory)[1]) == 1, problems(in_memory)
    starved = tiles.replace("tdpbf16ps %tmm6,%tmm4,%tmm0", "tileloadd (%rax,%rbx,1),%tmm5", 7)
    assert len(problems(starved)[1]) == 1, problems(starved)


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    else:
        sys.exit(0 if all([check(path) for path in sys.argv[1:]]) else 1)
