"""Prose out of source trees: comments, docstrings, manual pages, as snippets that know where they stand.

    tree --> files --> blocks --------------------------> snippets
             sorted    one comment, docstring, paragraph  a few sentences, with file, line and
             by name                                      the item that they document

It reads what a machine that builds software already has, so no text is downloaded. Code in documentation (fenced
examples, doctests, tables, licence headers) is left out; what remains must look like sentences.

    python demo/harvest.py            # counts what this machine would yield, tree by tree
"""

import argparse
import functools
import gzip
import hashlib
import html
import multiprocessing
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

FILE_BYTES_MAX = 2 << 20
FOLDERS_LEFT_OUT = ("__pycache__", "locale", "site-packages")  # a tree may itself be called site-packages
WORDS_MIN = 8  # fewer words say too little to be found by meaning
WORDS_AIM = 24  # a snippet is closed once it has this many
WORDS_MAX = 80


@dataclass(frozen=True, slots=True)
class Block:
    line: int
    text: str
    item: str = ""  # the signature that the text documents, where there is one


@dataclass(frozen=True, slots=True)
class Snippet:
    file: str  # relative to the tree, so that the same text has the same name on every machine
    line: int
    item: str
    text: str


# ---------------------------------------------------------------------------------------------- trees


def cargo_registry() -> list[Path]:
    home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    return sorted(p for p in (home / "registry" / "src").glob("*") if p.is_dir())


def python_sources() -> list[Path]:
    paths = sysconfig.get_paths()
    found = [Path(paths["stdlib"]), Path(paths["purelib"]), Path(paths["platlib"])]
    return list(dict.fromkeys(p for p in found if p.is_dir()))


def rust_books() -> list[Path]:
    home = Path(os.environ.get("RUSTUP_HOME", Path.home() / ".rustup"))
    books = [p for p in sorted((home / "toolchains").glob("*/share/doc/rust/html")) if p.is_dir()]
    return books[:1]  # every toolchain repeats nearly the same pages


def system_texts() -> list[Path]:
    home = Path.home()
    names = [
        "/usr/local/go/src",
        "/usr/lib/go",
        "/usr/share/man/man1",
        "/usr/share/man/man2",
        "/usr/share/man/man3",
        "/usr/share/man/man5",
        "/usr/share/man/man7",
        "/usr/share/man/man8",
        "/usr/share/doc",
        "/usr/share/perl",
        "/usr/share/perl5",
        "/usr/lib/node_modules",
        "/usr/lib/python3",
        "/usr/include",
        home / ".pyenv/versions",
        home / "go/pkg/mod",
        "/usr/share",
        "/usr/lib",
    ]
    return [Path(p) for p in names if Path(p).is_dir()]


def files_of(tree: Path) -> Iterator[Path]:
    """Files that we can read, in a stable order."""
    for folder, folders, names in os.walk(tree):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in FOLDERS_LEFT_OUT)
        for name in sorted(names):
            if reader_of(name) is not None:
                path = Path(folder, name)
                if path.is_file() and not path.is_symlink() and path.stat().st_size <= FILE_BYTES_MAX:
                    yield path


# --------------------------------------------------------------------------------------------- blocks

FENCE = re.compile(r"^\s*(```|~~~)")
NO_PROSE = (">>>", "...", "|", "#[", "+--", "===")
REFERENCE = re.compile(r"^\s*\[[^\]]+\]:\s")  # where a link of the text above leads
SIGNATURE = re.compile(
    r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:default\s+|const\s+|async\s+|unsafe\s+|extern\s+\S*\s*)*"
    r"(?:fn|struct|enum|trait|mod|type|const|static|macro_rules!|func|class|def|interface)\s+[^\s({<;=:]+"
)
DOC_LINE = re.compile(r"^\s*(?://[/!]?|\*+(?!/)|/\*+!?)\s?(.*?)(?:\*+/)?\s*$")


def without_examples(lines: list[str]) -> str:
    """Paragraph breaks stay as empty lines; fenced, indented and doctest lines go."""
    kept, fenced = [], False
    for line in lines:
        if FENCE.match(line):
            fenced = not fenced
            kept.append("")
        elif fenced or line.startswith("    ") or line.lstrip().startswith(NO_PROSE) or REFERENCE.match(line):
            kept.append("")
        else:
            kept.append(line)
    return "\n".join(kept)


def slash_blocks(text: str) -> Iterator[Block]:
    """Rust, Go, C, Java, JavaScript: runs of // lines, and /* */."""
    run: list[str] = []
    start = 0
    inside = False
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.lstrip()
        comment = inside or bare.startswith("//") or bare.startswith("/*")
        if comment:
            if not run:
                start = number
            found = DOC_LINE.match(line)
            run.append(found.group(1) if found else bare)
            if bare.startswith("/*"):
                inside = "*/" not in bare
            elif inside and "*/" in bare:
                inside = False
        elif run:
            if bare.startswith("#["):
                continue  # an attribute between a comment and its item
            item = SIGNATURE.match(line)
            yield Block(start, without_examples(run), item.group(0).strip() if item else "")
            run = []
    if run:
        yield Block(start, without_examples(run))


DOCSTRING = re.compile(r'[rRuU]?"""(.*?)"""|[rRuU]?\'\'\'(.*?)\'\'\'', re.S)


def python_blocks(text: str) -> Iterator[Block]:
    at, line = 0, 1
    for found in DOCSTRING.finditer(text):
        line += text.count("\n", at, found.start())
        at = found.start()
        before = text[max(0, at - 400) : at].rstrip().rsplit("\n", 3)[1:]
        item = next((s.group(0).strip() for s in map(SIGNATURE.match, reversed(before)) if s), "")
        body = found.group(1) or found.group(2) or ""
        lines = body.split("\n")
        indent = min((len(l) - len(l.lstrip()) for l in lines[1:] if l.strip()), default=0)
        yield Block(line, without_examples([lines[0]] + [l[indent:] for l in lines[1:]]), item)
    run: list[str] = []
    start = 0
    for number, row in enumerate(text.split("\n"), 1):
        bare = row.lstrip()
        if bare.startswith("#"):
            start = start if run else number
            run.append(bare.lstrip("#").removeprefix(" "))
        elif run:
            yield Block(start, without_examples(run))
            run = []


PAGE_BODY = ('<section id="main-content"', "<main>", "<body")
TAG_DROP = re.compile(r"<(script|style|pre|nav|head|header|footer|button|svg)\b.*?</\1\s*>", re.S | re.I)
TAG_BREAK = re.compile(r"</?(p|div|li|ul|ol|dd|dt|tr|td|th|h[1-6]|section|details|br|table)\b[^>]*>", re.I)
TAG = re.compile(r"<[^>]*>")


def html_blocks(text: str) -> Iterator[Block]:
    start = next((at for at in map(text.find, PAGE_BODY) if at >= 0), 0)
    text = TAG_DROP.sub("\n\n", text[start:])
    text = TAG.sub("", TAG_BREAK.sub("\n\n", text))
    yield Block(1, html.unescape(text))


def plain_blocks(text: str) -> Iterator[Block]:
    yield Block(1, without_examples(text.split("\n")))


ROFF_FONT = re.compile(r"\\f(?:\[[^\]]*\]|\(..|.)|\\s[-+]?\d|\\[&|^/,]|\\\*\(..|\\\*.")
ROFF_SIGN = {r"\-": "-", r"\(aq": "'", r"\(bu": "", r"\(em": " - ", r"\(co": "", r"\e": "\\", r"\ ": " ", r"\(lq": '"', r"\(rq": '"'}


def roff_blocks(text: str) -> Iterator[Block]:
    kept, raw = [], False
    for line in text.split("\n"):
        if line.startswith((".nf", ".EX", ".de")):
            raw = True
        elif line.startswith((".fi", ".EE", "..")):
            raw = False
            kept.append("")
        elif raw:
            continue
        elif line.startswith((".B ", ".I ", ".BR ", ".IR ", ".RB ", ".RI ", ".Nm ", ".Ar ", ".Fl ")):
            kept.append(line.split(" ", 1)[1].replace('"', ""))
        elif line.startswith((".", "'")):
            kept.append("")
        else:
            kept.append(line)
    plain = ROFF_FONT.sub("", "\n".join(kept))
    for sign, letter in ROFF_SIGN.items():
        plain = plain.replace(sign, letter)
    yield Block(1, plain)


def perl_blocks(text: str) -> Iterator[Block]:
    for part in re.findall(r"^=(?:head\d|item|pod|over|back)[^\n]*\n(.*?)(?=^=)", text, re.S | re.M):
        yield Block(1, without_examples(re.sub(r"[A-Z]<+([^<>]*)>+", r"\1", part).split("\n")))


Reader = Callable[[str], Iterator[Block]]
READERS: dict[str, Reader] = {
    **dict.fromkeys((".rs", ".go", ".c", ".h", ".hpp", ".cc", ".cpp", ".java", ".js", ".mjs", ".ts"), slash_blocks),
    **dict.fromkeys((".py", ".pyi", ".rb", ".tcl", ".sh"), python_blocks),
    **dict.fromkeys((".html", ".htm"), html_blocks),
    **dict.fromkeys((".md", ".rst", ".txt"), plain_blocks),
    **dict.fromkeys((".pod", ".pm", ".pl"), perl_blocks),
    ".gz": roff_blocks,
}
MANUAL = re.compile(r"\.\d\w*\.gz$")


def reader_of(name: str) -> Reader | None:
    ending = name[name.rfind(".") :] if "." in name else ""
    if ending == ".gz" and not MANUAL.search(name):
        return None
    return READERS.get(ending)


def read_text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        if path.suffix == ".gz":
            raw = gzip.decompress(raw)
    except (OSError, EOFError):
        return ""  # a file that vanished or is damaged only lowers the yield
    return raw.decode("utf-8", "replace")


# ------------------------------------------------------------------------------------------- snippets

PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\s*[-*+] )|\n(?=#)|\n(?=:\w+)")
SENTENCE = re.compile(r"(?<=[.!?:;])\s+(?=[\"'(`A-Z])")
LICENCE = ("copyright", "licens", "licence", "spdx", "warrant", "redistribut", "all rights reserved")
WORD = re.compile(r"[A-Za-z]{2,}")
NO_LETTER = re.compile(r"[^A-Za-z ]+")
MARKS = re.compile(r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])?|(?<!\w)[*_]{1,3}(?=\w)|(?<=\w)[*_]{1,3}(?!\w)")


def looks_like_prose(text: str) -> bool:
    if len(NO_LETTER.sub("", text)) < 0.82 * len(text):
        return False
    lower = text.lower()
    return not any(word in lower for word in LICENCE)


def sentences_of(block: Block) -> Iterator[tuple[int, str, int]]:
    """(line, sentence, words) of a block; a paragraph that is no prose breaks the run with an empty sentence."""
    at = 0
    for paragraph in PARAGRAPH.split(block.text):
        line = block.line + block.text.count("\n", 0, max(0, at))
        at = block.text.find(paragraph, at) + len(paragraph)
        flat = " ".join(MARKS.sub(lambda m: m.group(1) or "", paragraph.replace("`", "")).split()).lstrip("#-*+ ")
        if len(flat) < 12 or not looks_like_prose(flat):
            yield line, "", 0
            continue
        for sentence in SENTENCE.split(flat):
            words = len(WORD.findall(sentence))
            if words:
                yield line, sentence, words


def snippets_of(blocks: Iterator[Block], file: str, overlap: bool = False) -> Iterator[Snippet]:
    """Windows of whole sentences. With overlap each sentence opens a window of its own, else they follow each other."""
    for block in blocks:
        rows = list(sentences_of(block))
        first = 0
        while first < len(rows):
            last, words = first, 0
            while last < len(rows) and words < WORDS_AIM and rows[last][2]:
                words += rows[last][2]
                last += 1
            if WORDS_MIN <= words <= WORDS_MAX:
                yield Snippet(file, rows[first][0], block.item, " ".join(r[1] for r in rows[first:last]))
            first = first + 1 if overlap else max(last, first + 1)


def snippets_in(path: Path, tree: Path, overlap: bool) -> list[tuple[bytes, Snippet]]:
    """Snippets of one file with the key by which equal texts are known: their words, without case and digits."""
    found = []
    for snippet in snippets_of(reader_of(path.name)(read_text(path)), str(path.relative_to(tree)), overlap):
        words = " ".join(WORD.findall(snippet.text.lower()))
        found.append((hashlib.blake2b(words.encode(), digest_size=8).digest(), snippet))
    return found


def harvest(trees: list[Path], overlap: bool = False, seen: set[bytes] | None = None) -> Iterator[Snippet]:
    """Every distinct snippet of the trees, in an order that depends on names only; files are read on all cores."""
    seen = set() if seen is None else seen
    with multiprocessing.Pool() as pool:
        for tree in trees:
            read = functools.partial(snippets_in, tree=tree, overlap=overlap)
            for found in pool.imap(read, files_of(tree), chunksize=16):
                for key, snippet in found:
                    if key not in seen:
                        seen.add(key)
                        yield snippet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--overlap", action="store_true", help="each sentence opens a snippet")
    parser.add_argument("--show", type=int, default=2, help="examples printed of each tree")
    args = parser.parse_args()
    seen: set[bytes] = set()
    total = 0
    for tree in cargo_registry() + python_sources() + rust_books() + system_texts():
        count = 0
        for snippet in harvest([tree], args.overlap, seen):
            count += 1
            if count % 5000 == 1 and count // 5000 < args.show:
                print(f"    {snippet.file}:{snippet.line} [{snippet.item}] {snippet.text}")
        total += count
        print(f"{count:>9,} snippets  {tree}  (together {total:,})", flush=True)


if __name__ == "__main__":
    sys.exit(main())
