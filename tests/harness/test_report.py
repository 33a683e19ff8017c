import html.parser
import json
import re

import pytest

from jaxicml.harness import bench, page, report, runner
from jaxicml.harness.catalogue import METHODS


@pytest.fixture
def measured(house, name, used):
    """The house after its cpu run and its benchmark."""
    runner.run_driver(name, ["--scale", "cpu"], root=house)
    bench.run_bench(name, [], root=house)
    return house


def rewrite(house):
    assert report.run_report(report.Flags(), root=house) == 0
    return (house.parent / "README.md").read_text()


def check(house, capsys):
    capsys.readouterr()
    code = report.run_report(report.Flags(check=True), root=house)
    return code, capsys.readouterr().out


def edit(house, name, change):
    path = house / "results" / name / "cpu" / "result.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def test_catalogue_names_nineteen():
    assert len(METHODS) == 19
    assert all(METHODS.values())


def test_blocks_without_results(house, name):
    readme = rewrite(house)
    rows = [line for line in readme.splitlines() if line.startswith("| `")]
    assert len(rows) == 19
    assert rows[0].startswith(f"| `{name}` | Sinkhorn treatment effects | no result yet |  | [driv")
    assert all(row.endswith("| planned |  |  |") for row in rows[1:])
    assert "No figures yet." in readme
    assert readme.startswith("# Toys\n")
    assert "\nBetween.\n" in readme
    assert readme.endswith("After.\n")


def test_blocks_with_results(measured, name):
    readme = rewrite(measured)
    (row,) = [line for line in readme.splitlines() if line.startswith(f"| `{name}`")]
    assert "| 1/1 hold |" in row
    assert re.search(r"\| mean: 1\.\d+ \[.*\]; scale cpu, 1 CPU device \(.*commit unknown", row)
    folder = f"{measured.name}/results/{name}/cpu"
    assert f"[results]({folder}/table.md)" in row
    assert f"]({folder}/figure.png)" in readme
    assert (measured.parent / folder / "figure.png").is_file()


def test_check_passes_after_writing_and_names_what_differs(measured, name, capsys):
    code, said = check(measured, capsys)
    assert code == 1
    assert f"README.md: +| `{name}`" in said
    before = rewrite(measured)
    assert check(measured, capsys) == (0, "README and results agree\n")
    assert rewrite(measured) == before

    path = measured.parent / "README.md"
    path.write_text(before.replace("1/1 hold", "9/9 hold"))
    code, said = check(measured, capsys)
    assert code == 1
    assert "9/9 hold" in said
    assert "9/9 hold" in path.read_text()
    path.write_text(before.replace("Between.", "Free text."))
    assert check(measured, capsys)[0] == 0


def test_a_verdict_that_its_numbers_do_not_support_is_found(measured, name, capsys):
    rewrite(measured)

    def choose(record):
        record["claims"][0]["verdict"] = "fails"

    edit(measured, name, choose)
    code, said = check(measured, capsys)
    assert code == 1
    assert "claim 'mean' is stored as 'fails', its numbers say 'holds'" in said


def test_unexamined_claims_and_missing_figures_are_found(measured, name, capsys):
    def forget(record):
        claim = record["claims"][0]
        claim.update(conditions=[], reason="not fetched", verdict="not run")

    edit(measured, name, forget)
    rewrite(measured)
    (measured / "results" / name / "cpu" / "more.png").unlink()
    code, said = check(measured, capsys)
    assert code == 1
    assert "claim 'mean' was not run" in said
    assert "no more.png" in said


@pytest.mark.parametrize("content", ["{", "[]", '{"claims": [{"id": "x"}]}'])
def test_files_that_are_no_results_are_named(house, name, content, capsys):
    path = house / "results" / name / "cpu" / "result.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    code, said = check(house, capsys)
    assert code == 1
    assert str(path) in said
    with pytest.raises(ValueError, match=r"result\.json: expected"):
        report.run_report(report.Flags(), root=house)


@pytest.mark.parametrize("marker", ["<!-- generated: gallery -->", "<!-- end: methods -->"])
def test_a_readme_without_its_markers_is_left_alone(house, marker, capsys):
    path = house.parent / "README.md"
    broken = path.read_text().replace(marker, "")
    path.write_text(broken)
    code, said = check(house, capsys)
    assert code == 1
    assert "README.md: expected one block from" in said
    with pytest.raises(ValueError, match="expected one block from"):
        report.run_report(report.Flags(), root=house)
    assert path.read_text() == broken


class Page(html.parser.HTMLParser):
    """Balanced tags, and every place where a page could ask for another file."""

    def __init__(self, text):
        super().__init__()
        self.open, self.references, self.text = [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img"):
            self.open.append(tag)
        assert tag not in ("link", "script", "iframe")
        self.references += [value for key, value in attrs if key in ("src", "href", "srcset")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_page_holds_everything_and_asks_for_nothing(measured, name, tmp_path, capsys):
    out = tmp_path / "deep" / "page.html"
    assert report.run_report(report.Flags(html=out), root=measured) == 0
    content = out.read_text()
    parsed = Page(content)
    assert len(parsed.references) == 2
    assert all(link.startswith("data:image/png;base64,") for link in parsed.references)
    assert not re.search(r"https?:|url\(|@import", content)
    claim = json.loads((measured / "results" / name / "cpu" / "result.json").read_text())["claims"]
    for part in (claim[0]["sentence"], "> 0", "holds", "A note.", "POT: not installed", "buffers"):
        assert part in parsed.text
    assert all(method in parsed.text for method in METHODS)


def test_page_escapes_what_it_is_given(measured, name):
    nasty = '<script>alert("x")</script>&'

    def poison(record):
        record["claims"][0]["sentence"] = nasty
        record["claims"][0]["conditions"][0]["name"] = nasty
        record["tables"] = [
            {"title": nasty, "columns": [nasty, "b"], "rows": [[nasty, 1]], "note": nasty}
        ]
        record["device"] = nasty

    edit(measured, name, poison)
    content = page.html(report.read_all(measured))
    assert "<script" not in content
    assert Page(content).text.count(nasty) == 7  # each of them once, as text


def test_page_without_results(house):
    parsed = Page(page.html(report.read_all(house)))
    assert parsed.text.count("no result") == 19
    assert parsed.references == []
