// How is a list of 100,000 rows shown? Only those in sight are elements.
import { h, replace } from "./dom";

export interface Rows {
  count: number;
  row: (index: number) => HTMLElement;
}

/** A list that scrolls; rows have one height, which the style sheet gives as --row. */
export class VirtualList {
  readonly element: HTMLElement;
  private readonly inner: HTMLElement;
  private rows: Rows = { count: 0, row: () => h("div") };
  private readonly height: number;
  private shown = "";

  constructor(label: string, role: string, height = 28, private readonly most = 14) {
    this.height = height;
    this.inner = h("div", { class: "virtual-inner", role: "presentation" });
    this.element = h("div", { class: "virtual", role, "aria-label": label, tabindex: 0 }, this.inner);
    this.element.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw(true)).observe(this.element);
  }

  show(rows: Rows): void {
    this.rows = rows;
    this.inner.style.height = `${rows.count * this.height}px`;
    this.element.style.height = `${Math.max(3, Math.min(this.most, rows.count)) * this.height}px`;
    this.draw(true);
  }

  /** Bring a row into sight. */
  reveal(index: number): void {
    const top = index * this.height;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + this.height > scrollTop + clientHeight) this.element.scrollTop = top + this.height - clientHeight;
    this.draw(true);
  }

  get page(): number {
    return Math.max(1, Math.floor(this.element.clientHeight / this.height) - 1);
  }

  private draw(always = false): void {
    const first = Math.max(0, Math.floor(this.element.scrollTop / this.height) - 8);
    const last = Math.min(this.rows.count, first + Math.ceil((this.element.clientHeight || 400) / this.height) + 16);
    const now = `${first}-${last}`;
    if (!always && now === this.shown) return;
    this.shown = now;
    const rows: HTMLElement[] = [];
    for (let index = first; index < last; index++) {
      const row = this.rows.row(index);
      row.style.transform = `translateY(${index * this.height}px)`;
      rows.push(row);
    }
    replace(this.inner, rows);
  }
}
