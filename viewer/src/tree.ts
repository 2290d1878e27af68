// How does somebody walk through 100,000 names? With the arrows, or by typing a part of one.
import type { Tensors } from "./answers";
import { h } from "./dom";
import { type Module, matcher, partsOf } from "./modules";
import { VirtualList } from "./virtual";
import { count, shape, size } from "./words";

const IN_SIGHT = 14;

interface Row {
  module: Module;
  depth: number;
}

export class KeyTree {
  readonly element: HTMLElement;
  readonly search: HTMLInputElement;
  private readonly list = new VirtualList("Tensors", "tree");
  private readonly opened = new Set<string>();
  private readonly said = h("span", { class: "quiet", role: "status" });
  private rows: Row[] = [];
  private at = 0;

  constructor(
    private readonly root: Module,
    private readonly tensors: Tensors,
    private readonly open: (key: string) => void,
    private readonly typed: (text: string) => void,
  ) {
    this.search = h("input", {
      type: "search",
      placeholder: "search, such as layers.0 or *.bias",
      "aria-label": "Search tensors",
      spellcheck: "false",
      autocomplete: "off",
      input: () => this.filter(this.search.value),
      keydown: (event: KeyboardEvent) => {
        if (event.key !== "ArrowDown" && event.key !== "Enter") return;
        event.preventDefault();
        if (event.key === "Enter" && this.rows.length === 1) this.activate(0);
        else this.list.element.focus();
      },
    });
    const head = h("div", { class: "tree-row tree-head", "aria-hidden": "true" }, h("span", {}, "name"), h("span", {}, "dtype"), h("span", {}, "shape"), h("span", {}, "size"));
    this.element = h("div", { class: "tree" }, h("div", { class: "tree-tools" }, this.search, this.said), head, this.list.element);
    this.list.element.addEventListener("keydown", (event) => this.key(event));
    this.unfoldFew();
    this.filter("");
  }

  /** Unfold from the top while all of it stays in sight. */
  private unfoldFew(): void {
    let level = partsOf(this.root);
    while (level.length) {
      const next = level.flatMap(partsOf);
      if (!next.length || this.unfolded().length + next.length > IN_SIGHT) return;
      for (const module of level) if (module.parts.size) this.opened.add(module.path);
      level = next;
    }
  }

  /** Show what matches, by full name; without a text, the tree. */
  filter(text: string): void {
    if (this.search.value !== text) this.search.value = text;
    this.at = 0;
    this.rows = text.trim() ? this.found(text) : this.unfolded();
    this.list.element.scrollTop = 0;
    this.draw();
    this.typed(text);
  }

  private found(text: string): Row[] {
    const fits = matcher(text);
    const rows: Row[] = [];
    this.tensors.keys.forEach((key, tensor) => {
      if (fits(key)) rows.push({ depth: 0, module: { name: key, path: key, nbytes: this.tensors.nbytes[tensor], tensors: 1, parts: new Map(), tensor } });
    });
    return rows;
  }

  private unfolded(): Row[] {
    const rows: Row[] = [];
    const walk = (module: Module, depth: number) => {
      for (const part of partsOf(module)) {
        rows.push({ module: part, depth });
        if (this.opened.has(part.path)) walk(part, depth + 1);
      }
    };
    walk(this.root, 0);
    return rows;
  }

  private draw(): void {
    const searching = this.search.value.trim() !== "";
    this.said.textContent = searching ? `${count(this.rows.length, "match").replace("matchs", "matches")}` : count(this.tensors.keys.length, "tensor");
    this.list.show({ count: this.rows.length, row: (index) => this.row(index) });
    const active = this.rows[this.at];
    if (active) this.list.element.setAttribute("aria-activedescendant", `tree-${this.at}`);
  }

  private row(index: number): HTMLElement {
    const { module, depth } = this.rows[index];
    const isModule = module.parts.size > 0;
    const isOpen = this.opened.has(module.path);
    const kind = module.tensor >= 0 ? this.tensors.dtypes[this.tensors.dtype[module.tensor]] : "";
    const sides = module.tensor >= 0 ? shape(this.tensors.shapes[this.tensors.shape[module.tensor]]) : count(module.tensors, "tensor");
    return h(
      "div",
      {
        id: `tree-${index}`,
        class: "tree-row",
        role: "treeitem",
        "aria-level": depth + 1,
        "aria-expanded": isModule ? String(isOpen) : undefined,
        "aria-selected": String(index === this.at),
        click: () => this.activate(index),
      },
      h("span", { class: "tree-name", title: module.path, style: { paddingLeft: `${depth * 16}px` } }, h("i", { class: "fold", "aria-hidden": "true" }, isModule ? (isOpen ? "▾" : "▸") : ""), module.name),
      h("span", {}, kind),
      h("span", { class: module.tensor >= 0 ? "" : "quiet" }, sides),
      h("span", {}, size(module.nbytes)),
    );
  }

  /** Open a tensor, or unfold a module. */
  private activate(index: number): void {
    const { module } = this.rows[index];
    this.at = index;
    if (module.parts.size === 0) return this.open(module.path);
    this.fold(module, !this.opened.has(module.path));
  }

  private fold(module: Module, open: boolean): void {
    if (open) this.opened.add(module.path);
    else this.opened.delete(module.path);
    this.rows = this.unfolded();
    this.draw();
  }

  private key(event: KeyboardEvent): void {
    const row = this.rows[this.at];
    if (!row) return;
    const last = this.rows.length - 1;
    const moves: Record<string, number> = { ArrowDown: this.at + 1, ArrowUp: this.at - 1, Home: 0, End: last, PageDown: this.at + this.list.page, PageUp: this.at - this.list.page };
    const isModule = row.module.parts.size > 0;
    if (event.key in moves) {
      this.at = Math.max(0, Math.min(last, moves[event.key]));
    } else if (event.key === "ArrowRight" && isModule) {
      this.fold(row.module, true);
    } else if (event.key === "ArrowLeft" && isModule && this.opened.has(row.module.path)) {
      this.fold(row.module, false);
    } else if (event.key === "ArrowLeft") {
      const parent = this.rows.findLastIndex((one, n) => n < this.at && one.depth < row.depth);
      if (parent >= 0) this.at = parent;
    } else if (event.key === "Enter" || event.key === " ") {
      this.activate(this.at);
    } else {
      return;
    }
    event.preventDefault();
    this.draw();
    this.list.reveal(this.at);
  }
}
