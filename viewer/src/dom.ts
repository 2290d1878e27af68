// How are elements made? From parts that are text or elements, never from markup: no name that a
// checkpoint holds can become anything but text.

type Child = Node | string | number | null | undefined | false;
export type Children = Child | Child[];
type Handler = (event: never) => void;
type Attributes = Record<string, string | number | boolean | Handler | Partial<CSSStyleDeclaration> | undefined>;

const SVG = "http://www.w3.org/2000/svg";

function fill(element: Element, attributes: Attributes, children: Children[]): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (typeof value === "function") {
      element.addEventListener(name, value as EventListener);
    } else if (typeof value === "object") {
      Object.assign((element as HTMLElement).style, value);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** An HTML element; functions among the attributes listen to the event of that name. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Children[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  fill(element, attributes, children);
  return element;
}

/** An SVG element. */
export function s<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Children[]
): SVGElementTagNameMap[K] {
  const element = document.createElementNS(SVG, tag) as SVGElementTagNameMap[K];
  fill(element, attributes, children);
  return element;
}

/** A box with a heading; `extra` stands beside the heading. */
export function card(title: string, extra: Children, ...children: Children[]): HTMLElement {
  const head = h("div", { class: "card-head" }, h("h2", {}, title), h("div", { class: "card-extra" }, extra));
  return h("section", { class: "card", "aria-label": title }, head, ...children);
}

/** Pairs of names and values. */
export function facts(pairs: [string, Children][]): HTMLElement {
  return h(
    "dl",
    { class: "facts" },
    pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}

/** What stands where nothing can be shown: what happened, and what to do. */
export function notice(title: string, text: Children, kind: "empty" | "error" = "empty"): HTMLElement {
  return h("div", { class: `notice ${kind}`, role: kind === "error" ? "alert" : "status" }, h("strong", {}, title), h("p", {}, text));
}

export function waiting(text: string): HTMLElement {
  return h("div", { class: "waiting", role: "status" }, h("span", { class: "spinner", "aria-hidden": "true" }), text);
}

/** A select with its label. */
export function choice(
  label: string,
  options: [string, string][],
  chosen: string,
  change: (value: string) => void,
): HTMLLabelElement {
  const select = h(
    "select",
    { change: () => change(select.value) },
    options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)),
  );
  return h("label", { class: "field" }, h("span", {}, label), select);
}

/** A switch that is a button, for screen readers, too. */
export function toggle(label: string, on: boolean, change: (on: boolean) => void): HTMLButtonElement {
  const button = h(
    "button",
    {
      class: "toggle",
      type: "button",
      "aria-pressed": String(on),
      click: () => {
        on = !on;
        button.setAttribute("aria-pressed", String(on));
        change(on);
      },
    },
    label,
  );
  return button;
}

export function replace(parent: Element, ...children: Children[]): void {
  parent.replaceChildren();
  fill(parent, {}, children);
}
