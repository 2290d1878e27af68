"""Can everybody use it? Names of controls, the order of headings, and what Tab reaches."""

from __future__ import annotations

from typing import Any

_FLAWS = """() => {
    const flaws = [];
    const say = (what, one) => flaws.push(`${what}: ${one.outerHTML.slice(0, 120)}`);
    const seen = (one) => one.checkVisibility();
    const controls = 'button, a, select, input, summary, canvas, svg, [role=img], [role=tree], '
        + '[role=listbox], [role=region], [role=group]';
    for (const one of document.querySelectorAll(controls)) {
        if (!seen(one) || one.closest('[aria-hidden=true], [role=img] *')) continue;
        const named = one.getAttribute('aria-label') || one.textContent.trim()
            || [...(one.labels ?? [])].some((label) => label.textContent.trim());
        if (!named) say('no name', one);
    }
    for (const one of document.querySelectorAll('img:not([alt])')) say('no alt', one);
    const ids = [...document.querySelectorAll('[id]')].map((one) => one.id);
    for (const id of ids.filter((one, n) => ids.indexOf(one) !== n)) flaws.push(`id twice: ${id}`);
    let level = 0;
    for (const one of document.querySelectorAll('h1, h2, h3, h4, h5, h6')) {
        const own = Number(one.tagName[1]);
        if (own > level + 1) say('heading skips a level', one);
        level = own;
    }
    const only = (what) => document.querySelectorAll(what).length === 1
        || flaws.push(`not one ${what}`);
    ['h1', 'main', 'header', 'nav[aria-label=Views]', 'nav.tabs [aria-current=page]'].forEach(only);
    if (!document.documentElement.lang) flaws.push('no lang');
    if (!document.title) flaws.push('no title');
    for (const one of document.querySelectorAll('th:not([scope])')) say('th without scope', one);
    for (const one of document.querySelectorAll('[tabindex]')) {
        if (one.tabIndex > 0) say('an order of its own', one);
    }
    for (const one of document.querySelectorAll('[aria-activedescendant]')) {
        const id = one.getAttribute('aria-activedescendant');
        if (id && !document.getElementById(id)) say('its active row is not there', one);
    }
    return flaws;
}"""

_BEGIN = """() => {
    window.reached = [];
    document.addEventListener('focusin', ({ target }) => {
        const style = getComputedStyle(target);
        const edge = getComputedStyle(target.querySelector(':scope > rect') ?? target);
        const ring = (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0)
            || (edge.stroke !== 'none' && parseFloat(edge.strokeWidth) > 1);
        window.reached.push([target, ring]);
    });
    document.activeElement.blur();
    scrollTo(0, 0);
    const all = 'a[href], button, select, input, summary, [tabindex], [role=button], [onclick]';
    window.wanted = [...document.querySelectorAll(all)].filter((one) => one.checkVisibility()
        && !one.disabled && one.getAttribute('tabindex') !== '-1');
    return window.wanted.length;
}"""

_END = """() => {
    const name = (one) => one.outerHTML.slice(0, 120);
    const bare = window.reached.filter(([one, ring]) => !ring && one.id !== 'main');
    const found = new Set(window.reached.map(([one]) => one));
    return [
        window.wanted.filter((one) => !found.has(one)).map(name),
        bare.map(([one]) => name(one)),
        window.reached.length,
    ];
}"""


def flaws(page: Any) -> list[str]:
    """What those who do not see the page, or hear it read, would miss."""
    return page.evaluate(_FLAWS)


def unreached(page: Any) -> tuple[list[str], list[str]]:
    """What Tab does not reach of all that can be used, and where the focus cannot be seen."""
    wanted = page.evaluate(_BEGIN)
    for _ in range(wanted + 1):
        page.keyboard.press("Tab")
    missed, unseen, reached = page.evaluate(_END)
    assert reached >= min(wanted, 8)
    return missed, unseen
