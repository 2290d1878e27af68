"""Is any text cut off, or does it leave its card?"""

from __future__ import annotations

from typing import Any

_CUT = """() => {
    const cut = [];
    const clips = ['hidden', 'clip'];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const parent = node.parentElement;
        if (!node.data.trim() || !parent.checkVisibility()) continue;
        if (parent.closest('svg, option, script, style, [aria-hidden=true]')) continue;
        const range = document.createRange();
        range.selectNodeContents(node);
        const text = range.getBoundingClientRect();
        if (!text.width) continue;
        for (let one = parent; one && one !== document.body; one = one.parentElement) {
            const style = getComputedStyle(one);
            // What is meant to be shortened shows it, and what scrolls can be scrolled.
            if (style.textOverflow === 'ellipsis') break;
            if (['auto', 'scroll'].includes(style.overflowX)) break;
            if (one.matches('.skip')) break;
            const edge = one.getBoundingClientRect();
            const frames = clips.includes(style.overflowX) || one.matches('.card, .rank-row, main');
            if (frames && (text.right > edge.right + 0.5 || text.left < edge.left - 0.5)) {
                cut.push(`${node.data.trim().slice(0, 60)} leaves ${one.tagName}.${one.className}`);
                break;
            }
        }
    }
    return cut;
}"""


def cut_off(page: Any) -> list[str]:
    """Texts that are wider than what holds them, and neither wrapped, shortened nor scrolled."""
    return page.evaluate(_CUT)
