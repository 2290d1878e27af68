"""Can everybody read it? The contrast of every text on a page, as WCAG computes it.

Texts of drawings count, too. Behind a text is what was painted last at its place: the drawing's
shapes, then the backgrounds of the elements around it. What shines through is mixed.
"""

from __future__ import annotations

from typing import Any

_ENOUGH = 4.5
_LARGE = 3.0
"""Enough for letters of 24 px, or bold ones of 18.66 px."""

_SCRIPT = """() => {
    const parse = (text) => {
        const found = text.match(/[\\d.]+/g);
        if (!found || !text.startsWith('rgb')) return null;
        const [r, g, b, a] = found.map(Number);
        return [r, g, b, a ?? 1];
    };
    const over = (top, bottom) => [0, 1, 2].map((n) => top[n] * top[3] + bottom[n] * (1 - top[3]));
    const solidity = (element) => {
        let found = 1;
        for (let at = element; at; at = at.parentElement) found *= getComputedStyle(at).opacity;
        return found;
    };
    const behind = (element, box) => {
        const layers = [];
        const svg = element.ownerSVGElement;
        if (svg) {
            for (const one of svg.querySelectorAll('rect, path, circle, polygon')) {
                const place = one.getBoundingClientRect();
                const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
                const holds = place.left <= x && x <= place.right
                    && place.top <= y && y <= place.bottom;
                const before = one.compareDocumentPosition(element)
                    & Node.DOCUMENT_POSITION_FOLLOWING;
                const fill = parse(getComputedStyle(one).fill);
                if (holds && before && fill) layers.unshift(fill);
            }
        }
        for (let at = element; at; at = at.parentElement) {
            const colour = parse(getComputedStyle(at).backgroundColor);
            if (colour && colour[3]) layers.push(colour);
        }
        return layers.reduceRight((under, layer) => over(layer, under), [255, 255, 255]);
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const text = walker.currentNode.textContent.trim();
        const element = walker.currentNode.parentElement;
        const box = element.getBoundingClientRect();
        if (!text || !box.width || !box.height) continue;
        if (element.closest('script, style, option, title, [disabled]')) continue;
        const style = getComputedStyle(element);
        const colour = parse(element.ownerSVGElement ? style.fill : style.color);
        if (!colour) continue;
        const ground = behind(element, box);
        colour[3] *= solidity(element);
        const size = parseFloat(style.fontSize);
        const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
        found.push([text.slice(0, 40), over(colour, ground), ground, large]);
    }
    for (const one of document.querySelectorAll('input[placeholder]')) {
        if (one.value || !one.checkVisibility()) continue;
        const style = getComputedStyle(one, '::placeholder');
        const ground = behind(one, one.getBoundingClientRect());
        const colour = parse(style.color);
        colour[3] *= style.opacity;
        found.push([one.placeholder, over(colour, ground), ground, false]);
    }
    return found;
}"""


def too_faint(page: Any) -> list[tuple[str, float]]:
    """Texts whose contrast with what is behind them is too small to read."""
    found = [
        (text, contrast(colour, ground), _LARGE if large else _ENOUGH)
        for text, colour, ground, large in page.evaluate(_SCRIPT)
    ]
    assert len(found) > 20, "the page is not there yet"
    return [(text, round(ratio, 2)) for text, ratio, enough in found if ratio < enough]


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
