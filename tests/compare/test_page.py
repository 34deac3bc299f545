"""The page in a real headless Chromium: sort, filter, expand, by clicking and by keyboard.

Chromium is driven over the W3C WebDriver protocol that chromedriver speaks, which is plain JSON over HTTP.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lm_eval_proca.compare.comparison import compare
from lm_eval_proca.compare.page import render_page
from lm_eval_proca.compare.tables import MISSING

XSS = '"><script>window.hacked=1</script><img src=x onerror="window.hacked=1">{{ script }}\'</script>'
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
ENTER, TAB, SPACE = "\ue007", "\ue004", " "
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
]  # fmt: skip


class Browser:
    """One browser window; every method is one WebDriver command or two."""

    def __init__(self, profile: Path) -> None:
        self._driver = subprocess.Popen(
            [str(shutil.which("chromedriver")), "--port=0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._driver.stdout is not None
        port = next(
            line.rsplit(" ", 1)[1].strip(" .\n") for line in self._driver.stdout if "successfully on port" in line
        )
        self._address = f"http://127.0.0.1:{port}"
        options = {"binary": shutil.which("chromium"), "args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {
            "alwaysMatch": {
                "browserName": "chrome",
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL"},
            }
        }
        session = self._ask("POST", "/session", {"capabilities": wanted})
        self._address += f"/session/{session['sessionId']}"

    def close(self) -> None:
        try:
            self._ask("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait(timeout=10)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = urllib.request.Request(
            self._address + path, data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())["value"]

    def devtools(self, command: str, **params: Any) -> None:
        self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def open(self, page: Path, width: int = 1440, height: int = 900, scheme: str = "light") -> None:
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._ask("POST", "/url", {"url": page.as_uri()})
        end = time.monotonic() + 60
        while not self.script('return document.querySelector("#chart svg") !== null'):  # drawn after the first layout
            assert time.monotonic() < end, "the page draws no chart"
            time.sleep(0.05)

    def find(self, selector: str) -> str:
        return self._ask("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector: str) -> None:
        """A click as a person's: it fails where another element lies on top."""
        self._ask("POST", f"/element/{self.find(selector)}/click")

    def type(self, selector: str, text: str) -> None:
        self._ask("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Keys to whatever has the focus."""
        strokes = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]})

    def script(self, code: str) -> Any:
        return self._ask("POST", "/execute/sync", {"script": code, "args": []})

    def errors(self) -> list[str]:
        """What the page complained about: scripts that failed, or that the page's own policy refused."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed (Debian: apt-get install chromium chromium-driver)")
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def page(writer_into, tmp_path_factory) -> Path:
    """Three models, two datasets, two numbers of shots, two seeds; documents logged; one dataset missing."""
    folder = tmp_path_factory.mktemp("page")
    write_result = writer_into(folder / "results")
    skill = {"org/small": 2, "org/large": 6, "org/a-model-with-a-name-that-is-much-too-long-for-a-phone-" + "x" * 60: 4}
    for model, good in skill.items():
        for shots in (0, 4):
            for task in ("proca_sst2", "proca_a_dataset_with_a_very_long_name"):
                if (model, shots, task) == ("org/small", 0, "proca_sst2"):
                    continue
                for seed in (0, 1):
                    raw = [int(k < 8 + good - seed) for k in range(40)]
                    proca = [int(k < 20 + shots + good + seed) for k in range(40)]
                    write_result(
                        model=model,
                        shots=shots,
                        task=task,
                        seed=seed,
                        correct={"none": raw, "conca": raw, "proca": proca},
                    )
    file = folder / "page.html"
    file.write_text(render_page(compare([folder / "results"])), encoding="utf-8")
    return file


VISIBLE = """
return [...document.querySelectorAll("#leaderboard tbody.row")].filter((row) => row.offsetParent).map((row) =>
  [row.dataset.model.slice(0, 9), row.dataset.shots, row.dataset.method])
"""
COLUMN = """
return [...document.querySelectorAll("#leaderboard tbody.row")].filter((row) => row.offsetParent).map((row) =>
  row.rows[0].cells[5].dataset.value ?? null)
"""


def header(position: int) -> str:
    return f"#leaderboard th:nth-child({position}) button"


def test_opens_on_the_most_complete_shots_in_order_of_rank(browser, page):
    browser.open(page)
    rows = browser.script(VISIBLE)
    assert {shots for _, shots, _ in rows} == {"4"}
    assert rows[0] == ["org/large", "4", "proca"]
    assert len(rows) == 9
    assert browser.script('return document.querySelector("#shown").textContent') == "9 of 18 rows"


def test_sort_by_clicking(browser, page):
    browser.open(page)
    for first_click, falling in ((True, True), (False, False)):
        browser.click(header(6))
        gains = [float(gain) for gain in browser.script(COLUMN) if gain is not None]
        assert len(gains) == 6
        assert gains == sorted(gains, reverse=falling)
        assert browser.script(COLUMN)[-3:] == [None] * 3, "raw rows have no gain and stay last"
        said = browser.script('return document.querySelector("#leaderboard th:nth-child(6)").getAttribute("aria-sort")')
        assert said == ("descending" if first_click else "ascending")
    assert browser.script('return document.querySelectorAll("#leaderboard th[aria-sort]").length') == 1
    browser.click(header(2))
    names = [name for name, _, _ in browser.script(VISIBLE)]
    assert names == sorted(names)


def test_filter_by_model_shots_and_method(browser, page):
    browser.open(page)
    browser.type("#filters input", "LARGE")
    assert {name for name, _, _ in browser.script(VISIBLE)} == {"org/large"}
    browser.click('#filters [name=method] option[value="proca"]')
    assert browser.script(VISIBLE) == [["org/large", "4", "proca"]]
    browser.click('#filters [name=shots] option[value=""]')
    assert sorted(browser.script(VISIBLE)) == [["org/large", "0", "proca"], ["org/large", "4", "proca"]]
    browser.type("#filters input", "nothing like it")
    assert browser.script(VISIBLE) == []
    assert browser.script('return document.querySelector("#shown").textContent') == "0 of 18 rows"


def test_expand_shows_datasets_seeds_and_tests(browser, page):
    browser.open(page)
    assert browser.script('return document.querySelector("tr.details").offsetParent') is None
    browser.click("#leaderboard tbody:not([hidden]) .expand")
    text = browser.script('return document.querySelector("tbody:not([hidden]) tr.details").innerText')
    assert "sst2" in text
    assert "p (Holm)" in text
    # 30 and 31 of 40 against 14 and 13: mean 76.25 against 33.75.
    assert "+42.5" in text
    assert "< 0.001" in text
    seeds = browser.script('return document.querySelector("tbody:not([hidden]) tr.details svg title").textContent')
    assert seeds == "seed 0: 75.0, seed 1: 77.5"
    browser.click("#leaderboard tbody:not([hidden]) .expand")
    assert browser.script('return document.querySelector("tbody:not([hidden]) tr.details").offsetParent') is None


def test_an_expanded_row_stays_with_its_model_when_sorted(browser, page):
    browser.open(page)
    browser.click("#leaderboard tbody:not([hidden]) .expand")
    browser.click(header(2))
    browser.click(header(2))
    code = """const open = document.querySelector("tr.details:not([hidden])"); return open.parentNode.dataset.model"""
    assert browser.script(code) == "org/large"


def test_keyboard_alone_sorts_expands_and_opens(browser, page):
    browser.open(page)
    focus = "return document.activeElement.matches('%s')"
    for _ in range(40):
        browser.press(TAB)
        if browser.script(focus % "#leaderboard th button"):
            break
    outline = browser.script("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "the focus must be seen"
    browser.press(ENTER)
    assert browser.script('return document.querySelector("#leaderboard th").getAttribute("aria-sort")') == "descending"
    for _ in range(40):
        browser.press(TAB)
        if browser.script(focus % ".expand"):
            break
    browser.press(SPACE)
    assert browser.script("return document.activeElement.getAttribute('aria-expanded')") == "true"
    for _ in range(80):
        browser.press(TAB)
        if browser.script(focus % "details.model summary"):
            break
    opened = "return document.activeElement.parentNode.open"
    before = browser.script(opened)
    browser.press(ENTER)
    assert browser.script(opened) is not before


def test_per_dataset_table_is_sortable(browser, page):
    browser.open(page)
    browser.click("details.model .plain th:last-child button")
    values = browser.script(
        """return [...document.querySelector("details.model .plain").tBodies[0].rows].map((row) =>
        row.lastElementChild.dataset.value ?? null)"""
    )
    present = [float(value) for value in values if value is not None]
    assert present == sorted(present, reverse=True)
    assert len(present) == 6


def test_chart_draws_raw_and_calibrated_and_every_seed(browser, page):
    browser.open(page)
    code = """
      const svg = [...document.querySelectorAll("#chart figure")].find((f) => f.innerText.startsWith("org/large"));
      const row = svg.querySelector('[data-dataset="sst2"]');
      const at = (kind) => Number(row.querySelector("circle." + kind).getAttribute("cx"));
      return [at("raw"), at("calibrated"), row.querySelectorAll(".seed").length, row.querySelector("title").textContent]
    """
    raw, calibrated, seeds, title = browser.script(code)
    assert raw < calibrated
    assert seeds == 4
    assert title == "sst2: raw 33.8 → 76.2"
    assert browser.script('return document.querySelectorAll("#chart figure").length') == 3
    browser.click('#chart-choice [name=method] option[value="conca"]')
    same = browser.script(code)
    assert same[0] == same[1] == pytest.approx(raw)
    browser.click('#chart-choice [name=shots] option[value="0"]')
    small = """
      const svg = [...document.querySelectorAll("#chart figure")].find((f) => f.innerText.startsWith("org/small"));
      return svg.querySelector('[data-dataset="sst2"]').textContent
    """
    assert f"{MISSING} → {MISSING}" in browser.script(small), "what is missing is shown as missing"


@pytest.fixture(scope="module")
def page_of_prompts(writer_into, tmp_path_factory) -> Path:
    """Two models, two datasets, four prompts and all of them together; one result has one prompt."""
    folder = tmp_path_factory.mktemp("prompts")
    write_result = writer_into(folder / "results")
    for model, good in (("org/large", 8), ("org/small", 2)):
        for task in ("proca_sst2", "proca_a_dataset_with_a_very_long_name"):
            right = {
                "none": [[int(k < 8 + good + 3 * prompt) for k in range(40)] for prompt in range(4)],
                "proca": [[int(k < 26 + good - prompt % 2) for k in range(40)] for prompt in range(4)],
            }
            together = {"none": [int(k < 16 + good) for k in range(40)], "proca": [int(k < 32) for k in range(40)]}
            write_result(model=model, task=task, prompts=right, together=together)
    one = {name: found[0] for name, found in right.items()}
    write_result(model="org/single", correct=one)
    file = folder / "page.html"
    file.write_text(render_page(compare([folder / "results"])), encoding="utf-8")
    return file


STRIPS = """
const figure = [...document.querySelectorAll("#chart figure")].find((f) => f.innerText.startsWith("%s"));
const row = figure.querySelector('[data-dataset="sst2"]');
const at = (query, name) => [...row.querySelectorAll(query)].map((mark) => Number(mark.getAttribute(name)));
return {
  raw: at("circle.prompt.raw", "cx"), calibrated: at("circle.prompt.calibrated", "cx"),
  means: at("line.mean", "x1"), together: row.querySelectorAll("path.together").length,
  title: row.querySelector("title").textContent,
  values: [...row.querySelectorAll("text")].slice(1).map((text) => text.textContent),
  ticks: [...figure.querySelectorAll(".axis")].map((tick) => [tick.textContent, tick.getAttribute("x")].map(Number)),
};
"""


@pytest.mark.parametrize("width", [390, 1440])
def test_chart_draws_a_strip_of_prompts_with_mean_and_ensemble(browser, page_of_prompts, width):
    browser.open(page_of_prompts, width=width)
    found = browser.script(STRIPS % "org/large")
    (low, left), *_, (high, right) = found["ticks"]

    def places(*right_answers: float) -> Any:
        shares = [(100 * count / 40 - low) / (high - low) for count in right_answers]
        return pytest.approx([left + share * (right - left) for share in shares], abs=0.01)

    assert found["raw"] == places(16, 19, 22, 25)
    assert found["calibrated"] == places(34, 33, 34, 33)
    assert found["means"] == places(20.5, 33.5)
    assert found["together"] == 2
    assert found["values"] == ["51.2 ◆60.0", "83.8 ◆80.0"]
    assert found["title"] == "sst2: raw 51.2 ◆60.0 (40.0 to 62.5) → proca 83.8 ◆80.0 (82.5 to 85.0)"
    single = browser.script(STRIPS % "org/single")
    assert (len(single["raw"]), len(single["calibrated"]), single["together"]) == (1, 1, 0)
    methods = browser.script(
        'return [...document.querySelectorAll("#chart-choice [name=method] option")].map((o) => o.value)'
    )
    assert methods == ["proca"], "an ensemble is a mark in a strip"


def test_expand_shows_prompts_and_how_often_the_order_changes(browser, page_of_prompts):
    browser.open(page_of_prompts)
    row = '#leaderboard tbody[data-model="org/large"][data-method="proca"]'
    browser.click(f"{row} .expand")
    text = browser.script(f"return document.querySelector('{row} tr.details').innerText")
    assert "Order changes" in text
    assert "83.8" in text
    assert "≥82.5" in text
    title = browser.script(f"return document.querySelector('{row} tr.details svg title').textContent")
    assert (
        title == "seed 0: 85.0, seed 0, prompt 1: 82.5, seed 0, prompt 2: 85.0, seed 0, prompt 3: 82.5; together: 80.0"
    )
    inside = f"""
      const strip = document.querySelector('{row} tr.details svg');
      const frame = strip.getBoundingClientRect();
      return [...strip.querySelectorAll("circle, path")].every((mark) => {{
        const {{ left, right }} = mark.getBoundingClientRect();
        return left >= frame.left && right <= frame.right;
      }})
    """
    assert browser.script(inside)
    assert browser.script('return document.querySelector("#prompt-order-title").textContent').startswith(
        "Order of models"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_no_overflow_with_prompts(browser, page_of_prompts, width, scheme):
    browser.open(page_of_prompts, width=width, scheme=scheme)
    browser.click("#leaderboard tbody:not([hidden]) .expand")
    assert browser.script("return document.documentElement.scrollWidth <= innerWidth")
    cut = """
      const outside = (svg) => {
        const frame = svg.getBoundingClientRect();
        return [...svg.querySelectorAll("text, circle, path")].filter((mark) => {
          const { left, right } = mark.getBoundingClientRect();
          return left < frame.left - 0.5 || right > frame.right + 0.5;
        });
      };
      return [...document.querySelectorAll("#chart svg")].flatMap(outside).map((mark) => mark.outerHTML)
    """
    assert browser.script(cut) == []
    assert browser.errors() == []


@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("name", ["agnews", "WWWWWW", "W" * 40])
def test_chart_cuts_no_text_off(browser, write_result, tmp_path, name, width):
    folder = write_result(task=f"proca_{name}", accuracy={"none": 1.0, "proca": 1.0}).parent
    file = tmp_path / "page.html"
    file.write_text(render_page(compare([folder])), encoding="utf-8")
    browser.open(file, width=width)
    code = """
      const svg = document.querySelector("#chart svg");
      const frame = svg.getBoundingClientRect();
      const cut = ({ left, right }) => left < frame.left - 0.5 || right > frame.right + 0.5;
      const texts = [...svg.querySelectorAll("text")];
      return texts.filter((text) => cut(text.getBoundingClientRect())).map((text) => text.textContent)
    """
    assert browser.script(code) == []
    label = browser.script('return document.querySelector("#chart [data-dataset] text").textContent')
    assert label == name or (len(name) == 40 and label.endswith("…")), "only a name that is too long is shortened"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_no_overflow_on_phone_and_desktop(browser, page, width, scheme):
    browser.open(page, width=width, scheme=scheme)
    browser.click("#leaderboard tbody:not([hidden]) .expand")
    assert browser.script("return document.documentElement.scrollWidth <= innerWidth")
    outside = """
      const wide = (element) => element.getBoundingClientRect().right > innerWidth + 0.5 && !element.closest(".scroll");
      return [...document.querySelectorAll("body *")].filter(wide).map((element) => element.outerHTML.slice(0, 80))
    """
    assert browser.script(outside) == []
    assert browser.errors() == []


def test_light_and_dark_follow_the_system_until_switched(browser, page):
    background = "return getComputedStyle(document.body).backgroundColor"
    browser.open(page, scheme="light")
    light = browser.script(background)
    browser.open(page, scheme="dark")
    dark = browser.script(background)
    assert light != dark
    browser.click("#theme")
    assert browser.script(background) == light
    browser.script("localStorage.clear()")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(browser, page, scheme):
    """WCAG AA: 4.5 to 1 for every text colour on the card and the page."""
    browser.open(page, scheme=scheme)
    code = """
      const luminance = (name) => {
        const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim().slice(1);
        const full = hex.length === 3 ? [...hex].map((c) => c + c).join("") : hex;
        const [r, g, b] = [0, 2, 4].map((k) => parseInt(full.slice(k, k + 2), 16) / 255)
          .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      return ["--ink", "--quiet", "--calibrated", "--loss"].flatMap((text) =>
        ["--page", "--card", "--hover", "--warn"].map((back) => contrast(luminance(text), luminance(back))));
    """
    assert min(browser.script(code)) >= 4.5


@pytest.fixture
def hostile_page(write_result, tmp_path) -> Path:
    write_result(model=XSS, accuracy={"none": 0.5, XSS: 0.6})
    folder = write_result(
        model="org/other", task="proca_" + XSS.replace("/", ""), accuracy={"none": 0.5, XSS: 0.7}
    ).parent
    (folder / "results_2026-03-01T00-00-00.json").write_text("{")
    file = tmp_path / "page.html"
    file.write_text(render_page(compare([folder])), encoding="utf-8")
    return file


def test_names_are_text_to_a_parser(hostile_page, page):
    """What no browser is needed for: only elements and scripts of any other page, and the names as they are."""
    hostile, usual = (Elements(file.read_text(encoding="utf-8")) for file in (hostile_page, page))
    assert set(hostile.tags) <= set(usual.tags)
    assert [hostile.tags.count(name) for name in ("img", "script")] == [0, 2]
    data, script = hostile.scripts
    assert script == usual.scripts[1]
    assert json.loads(data)["models"] == sorted([XSS, "org/other"])
    assert sum(XSS in value for value in hostile.values) > 5


class Elements(HTMLParser):
    """Every element of a page, the values of their attributes, and the scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.values: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += [value for _, value in attrs if value]

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script" and data.strip():
            self.scripts.append(data)


def test_names_cannot_become_markup(browser, hostile_page):
    browser.open(hostile_page)
    browser.click("#leaderboard tbody:not([hidden]) .expand")
    assert browser.script("return window.hacked") is None
    assert browser.script('return document.querySelectorAll("img").length') == 0
    assert browser.script('return document.querySelectorAll("script").length') == 2
    names = browser.script('return [...document.querySelectorAll("figcaption")].map((e) => e.textContent)')
    assert XSS in names
    assert browser.errors() == []


def test_page_needs_no_network(page):
    text = page.read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    addresses = set(re.findall(r"https?://[^\s\"'<>)]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}, "only the name of the SVG namespace"
