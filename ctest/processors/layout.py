#!/usr/bin/env python3
"""Writes a C program that prints ctest/abi/abi_layout.tsv with the layouts of its compiler.

    layout.py ctest/abi/abi_layout.tsv >layout.c
"""
import sys

rows = [line.rstrip("\n").split("\t") for line in open(sys.argv[1], encoding="utf-8")]
header, rows = rows[0], rows[1:]
print("#define _GNU_SOURCE\n#include <stdio.h>\n#include <stddef.h>")
for name in sorted({row[6] for row in rows}):
    print(f"#include <rdma/{name}>")
print("int main(void)\n{")
print('\tputs("' + "\\t".join(header) + '");')
for struct, field, _, _, _, c_type, *rest in rows:
    if field == "(total)":
        place, size, align = "(size_t) 0", f"sizeof(struct {struct})", f'printf("%zu", __alignof__(struct {struct}))'
    else:
        place = f"offsetof(struct {struct}, {field})"
        size = "(size_t) 0" if c_type.endswith("[]") else f"sizeof(((struct {struct} *) 0)->{field})"
        align = 'printf("-")'
    end = "\\t".join([c_type, *rest]).replace('"', '\\"')
    print(f'\tprintf("{struct}\\t{field}\\t%zu\\t%zu\\t", {place}, {size}); {align}; puts("\\t{end}");')
print("\treturn 0;\n}")
