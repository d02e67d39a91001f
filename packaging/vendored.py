"""What is in the folder of crates that an archive of the sources brings along.

vendored.py prune VENDOR METADATA   leaves of a crate that METADATA (cargo metadata, once for each system)
                                    does not name no more than cargo has to see, and nothing compiled of any
vendored.py copyright VENDOR        prints the crates' paragraphs of a debian/copyright
vendored.py sbom VENDOR LINKED VERSION
                                    prints a list of the crates (SBOM) as JSON of CycloneDX 1.5. Crates in the file LINKED,
                                    lines 'NAME vVERSION' as cargo tree prints them, are in the libraries and programs;
                                    the others only build or test them
"""

import json
import pathlib
import re
import shutil
import sys

# Compiled for other systems; the crates have them for compilers without an assembler or a linker's libraries.
COMPILED = {".a", ".lib", ".o", ".obj", ".dll", ".exe", ".so", ".wasm"}


def crates(vendor):
    """The folders of the crates, each with what its Cargo.toml says of name, version and licence."""
    for folder in sorted(pathlib.Path(vendor).iterdir()):
        text = (folder / "Cargo.toml").read_text()
        package = text[text.index("[package]") :]
        package = package[: package.find("\n[", 1)]
        fields = {
            key: json.loads(value)
            for key, value in re.findall(r'^(name|version|license) = ("[^"\n]*")$', package, re.M)
        }
        authors = re.search(r"^authors = (\[[^\]]*\])$", package, re.M)
        fields["authors"] = re.findall(r'"([^"]*)"', authors.group(1)) if authors else []
        yield folder, fields


def documents(stream):
    decoder, text = json.JSONDecoder(), stream.read()
    at = 0
    while text[at:].strip():
        value, end = decoder.raw_decode(text[at:].lstrip())
        at = len(text) - len(text[at:].lstrip()) + end
        yield value


def prune(vendor, metadata):
    with open(metadata) as stream:
        used = set()
        for system in documents(stream):
            named = {package["id"]: (package["name"], package["version"]) for package in system["packages"]}
            used |= {named[node["id"]] for node in system["resolve"]["nodes"]}
    for folder, fields in crates(vendor):
        sums = folder / ".cargo-checksum.json"
        said = json.loads(sums.read_text())
        if (fields["name"], fields["version"]) in used:
            for path in sorted(folder.rglob("*")):
                if path.suffix in COMPILED and path.is_file():
                    path.unlink()
                    said["files"].pop(str(path.relative_to(folder)), None)
        else:
            for path in folder.iterdir():
                if path.name not in ("Cargo.toml", ".cargo-checksum.json"):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            for empty in re.findall(r'^(?:path|build) = "([^"]*\.rs)"$', (folder / "Cargo.toml").read_text(), re.M):
                (folder / empty).parent.mkdir(parents=True, exist_ok=True)
                (folder / empty).touch()
            (folder / "src").mkdir(exist_ok=True)
            (folder / "src/lib.rs").touch()
            said["files"] = {}
        sums.write_text(json.dumps(said, sort_keys=True))


# What Debian has in /usr/share/common-licenses; of all others the text is a file of one of the crates.
COMMON = {"Apache-2.0": "Apache-2.0", "MPL-2.0": "MPL-2.0"}
LLVM = "Apache-2.0 WITH LLVM-exception"
# How a text that a crate has begins, without spaces and case.
TEXTS = {
    "MIT": "permission is hereby granted, free of charge, to any person",
    "BSD-2-Clause": "redistribution and use in source and binary forms",
    "BSD-3-Clause": "neither the name",
    "ISC": "permission to use, copy, modify, and/or distribute this software for any purpose",
    "Unicode-3.0": "unicode license v3",
    "Zlib": "this software is provided 'as-is'",
    "0BSD": "permission to use, copy, modify, and/or distribute this software for any purpose",
    "Unlicense": "this is free and unencumbered software",
    "BSL-1.0": "boost software license",
    LLVM: "llvm exceptions to the apache 2.0 license",
}


def licence_files(folder):
    wanted = re.compile(r"(licen[cs]e|copying|copyright|unlicense|notice)", re.I)
    return sorted(path for path in folder.iterdir() if path.is_file() and wanted.match(path.name))


def holders(folder, fields):
    lines = []
    for path in licence_files(folder):
        for line in path.read_text(errors="replace").splitlines():
            line = line.strip(" /*#")
            if re.match(r"copyright( \(c\)| ©)? ?\d{4}", line, re.I) and line not in lines:
                lines.append(line)
    return lines or [f"the authors of {fields['name']}: {', '.join(fields['authors'])}".rstrip(": ")]


def expression(licence):
    """An SPDX expression in the words of debian/copyright, and the licences that it names."""
    alternatives = re.sub(r"\s*/\s*", " OR ", licence)
    names = re.findall(r"[A-Za-z0-9.+-]+(?: WITH [A-Za-z0-9.-]+)?", re.sub(r"\b(AND|OR)\b", "(", alternatives))
    words = alternatives.replace(" OR ", " or ").replace(" AND ", " and ").replace("(", "").replace(")", "")
    # In debian/copyright an 'and' binds closer than an 'or', and a comma parts what is beside it.
    words = re.sub(r"(\S+ or \S+) and ", r"\1, and ", words)
    return re.sub(r"(\S+) WITH (\S+)", r"\1 with \2 exception", words).replace("-exception exception", " exception"), names


def without_holders(text):
    """The text without the lines above it that name whose it is: those are in the paragraphs of the crates."""
    lines = text.strip().splitlines()
    while lines and (not lines[0].strip() or re.match(r"(copyright|all rights reserved|the mit license)", lines[0].strip(), re.I)):
        lines.pop(0)
    return "\n".join(lines)


def indented(text):
    return "\n".join(" " + (line.rstrip() or ".") for line in text.strip("\n").splitlines())


def copyright_paragraphs(vendor):
    texts, needed = {}, set()
    for folder, fields in crates(vendor):
        licence = fields.get("license")
        if not licence:
            sys.exit(f"{folder}: no licence in its Cargo.toml")
        if not json.loads((folder / ".cargo-checksum.json").read_text())["files"]:
            continue  # pruned: nothing of it is left
        words, names = expression(licence)
        needed.update(names)
        print(f"Files: vendor/{folder.name}/*")
        print("Copyright: " + "\n           ".join(holders(folder, fields)))
        print(f"License: {words}\n")
        for path in licence_files(folder):
            text = path.read_text(errors="replace")
            plain = " ".join(text.lower().split())
            for name in names:
                # a file with this licence alone, the shortest there is
                if name in TEXTS and TEXTS[name] in plain and len(plain) < 14000:
                    if name not in texts or len(text) < len(texts[name]):
                        texts[name] = text
    for name in sorted(needed):
        title = re.sub(r" WITH (\S+)-exception$", r" with \1 exception", name)
        print(f"License: {title}")
        if name == LLVM:
            exception = texts[name][texts[name].index("LLVM Exceptions") :]
            exception = re.sub(r"^LLVM Exceptions.*\n|^-+.*\n", "", exception)
            print(f" On Debian systems the text is /usr/share/common-licenses/{COMMON['Apache-2.0']}, with this exception:\n .")
            print(indented(exception) + "\n")
        elif name in COMMON:
            print(f" On Debian systems the text is /usr/share/common-licenses/{COMMON[name]}.\n")
        elif name in texts:
            print(indented(without_holders(texts[name])) + "\n")
        else:
            sys.exit(f"no crate has the text of {name}")


def sbom(vendor, linked, version):
    with open(linked) as stream:
        required = {tuple(line.split()[:2]) for line in stream if len(line.split()) > 1}
    components = []
    for folder, fields in crates(vendor):
        sums = json.loads((folder / ".cargo-checksum.json").read_text())
        if not sums["files"]:
            continue  # pruned: nothing of it is left
        purl = f"pkg:cargo/{fields['name']}@{fields['version']}"
        components.append(
            {
                "type": "library",
                "bom-ref": purl,
                "name": fields["name"],
                "version": fields["version"],
                "scope": "required" if (fields["name"], "v" + fields["version"]) in required else "excluded",
                "hashes": [{"alg": "SHA-256", "content": sums["package"]}],
                "licenses": [{"expression": re.sub(r"\s*/\s*", " OR ", fields["license"])}],
                "purl": purl,
            }
        )
    own = {
        "type": "library",
        "bom-ref": f"pkg:generic/ofi@{version}",
        "name": "ofi",
        "version": version,
        "licenses": [{"expression": "BSD-2-Clause OR MIT"}],
        "purl": f"pkg:generic/ofi@{version}",
    }
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own},
        "components": components,
        "dependencies": [
            {"ref": own["bom-ref"], "dependsOn": [each["bom-ref"] for each in components if each["scope"] == "required"]}
        ],
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["prune"] and len(sys.argv) == 4:
        prune(sys.argv[2], sys.argv[3])
    elif sys.argv[1:2] == ["copyright"] and len(sys.argv) == 3:
        copyright_paragraphs(sys.argv[2])
    elif sys.argv[1:2] == ["sbom"] and len(sys.argv) == 5:
        sbom(*sys.argv[2:])
    else:
        sys.exit(__doc__)
