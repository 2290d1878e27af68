"""Can everybody read it? The contrast of every text on a page, as WCAG computes it."""

from __future__ import annotations

from typing import Any

_ENOUGH = 4.5

_SCRIPT = """() => {
    const parse = (text) => {
        const found = text.match(/[\\d.]+/g);
        return found && text.startsWith('rgb') ? found.map(Number) : null;
    };
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = parse(getComputedStyle(at).backgroundColor);
            if (colour && (colour.length < 4 || colour[3] === 1)) return colour.slice(0, 3);
        }
        return [255, 255, 255];
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const text = walker.currentNode.textContent.trim();
        const element = walker.currentNode.parentElement;
        const box = element.getBoundingClientRect();
        if (!text || !box.width || !box.height || element.closest('script, option, svg')) continue;
        const colour = parse(getComputedStyle(element).color);
        if (colour) found.push([text.slice(0, 40), colour, behind(element)]);
    }
    return found;
}"""


def too_faint(page: Any) -> list[tuple[str, float]]:
    """Texts whose contrast with what is behind them is less than 4.5 to 1."""
    found = [(text, contrast(colour, ground)) for text, colour, ground in page.evaluate(_SCRIPT)]
    assert len(found) > 20
    return [(text, ratio) for text, ratio in found if ratio < _ENOUGH]


def contrast(one: list[float], other: list[float]) -> float:
    """The ratio of two colours' luminances.

    >>> round(contrast([0, 0, 0], [255, 255, 255]), 1)
    21.0
    """
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: list[float]) -> float:
    parts = [c / 255 for c in colour[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
