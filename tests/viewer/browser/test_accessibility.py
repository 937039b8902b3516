"""Names, alternative texts, headings and contrast."""

from __future__ import annotations

from typing import Any

from tests.viewer.browser.conftest import Opener

NAMELESS = """() => {
  const visible = e => e.getClientRects().length > 0;
  const name = e => (e.getAttribute('aria-label') || e.getAttribute('title') || e.textContent || '').trim()
    || [...(e.labels || [])].map(l => l.textContent).join('').trim();
  return [...document.querySelectorAll('a[href], button, input, select, textarea, canvas, [role=img], summary')]
    .filter(visible).filter(e => !name(e)).map(e => e.outerHTML.slice(0, 120));
}"""

WITHOUT_ALT = "() => [...document.images].filter(i => !i.alt).map(i => i.src)"

HEADINGS = """() => [...document.querySelectorAll('h1,h2,h3,h4,h5,h6')]
  .filter(e => e.getClientRects().length).map(e => Number(e.tagName[1]))"""

# The contrast of every text with the ground behind it, as WCAG 2 computes it.
FAINT = """() => {
  const parse = c => { const m = c.match(/[\\d.]+/g).map(Number); return [...m, 1].slice(0, 4); };
  const light = c => { const f = v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
    return 0.2126 * f(c[0]) + 0.7152 * f(c[1]) + 0.0722 * f(c[2]); };
  const ground = e => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c[3] === 1) return c;
    }
    return [255, 255, 255, 1];
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    const text = walk.currentNode.textContent.trim();
    if (!text || !e.getClientRects().length || e.closest('.unseen, option, :disabled, [hidden]')) continue;
    const style = getComputedStyle(e);
    const ink = parse(e instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(ink), light(ground(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)} ${text.slice(0, 40)} ${e.className}`);
  }
  return found;
}"""


def skipped(levels: list[int]) -> list[tuple[int, int]]:
    """Where a heading goes more than one level deeper than the one before."""
    return [(a, b) for a, b in zip([0, *levels], levels, strict=False) if b > a + 1]


def check(page: Any, screen: str) -> None:
    """The checks of one screen; test_screens.py opens every screen in both themes."""
    page.wait_for_timeout(200)
    assert page.evaluate(NAMELESS) == [], screen
    assert page.evaluate(WITHOUT_ALT) == [], screen
    levels = page.evaluate(HEADINGS)
    assert levels and levels[0] == 1 and levels.count(1) == 1, screen
    assert skipped(levels) == [], screen
    assert page.evaluate(FAINT) == [], screen


def test_the_checks_can_fail(viewer: Opener, address: str) -> None:
    page: Any = viewer(address).open("/runs")
    page.evaluate("""() => {
      const make = (tag, text) => {
        const e = document.createElement(tag);
        e.textContent = text;
        document.getElementById('main').append(e);
        return e;
      };
      make('button', '');
      make('img', '');
      make('p', 'faint').style.color = '#bbb';
    }""")
    assert len(page.evaluate(NAMELESS)) == 1
    assert len(page.evaluate(WITHOUT_ALT)) == 1
    assert len(page.evaluate(FAINT)) == 1
    assert skipped([1, 3]) == [(1, 3)]


def test_focus_is_visible(viewer: Opener, address: str) -> None:
    page: Any = viewer(address).open("/map")
    for _ in range(3):
        page.keyboard.press("Tab")
    style = page.evaluate("() => getComputedStyle(document.activeElement).outline")
    assert "solid 2px" in style
