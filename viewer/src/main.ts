// What does the page consist of? A bar with the views, and below it the one that the address names.
import "./style.css";
import { isReport, prepare, Problem } from "./api";
import { type Catalogue, newest, readCatalogue } from "./catalogue";
import { h, notice, replace, waiting } from "./dom";
import { go, here, link } from "./route";
import { themeButton } from "./theme";
import { checkpointView } from "./views/checkpoint";
import { compareView } from "./views/compare";
import { runView } from "./views/run";
import { tensorView } from "./views/tensor";
import { whatIfView } from "./views/what_if";

export interface Shown {
  catalogue: Catalogue;
  query: Record<string, string>;
  /** Ends when another view is shown. */
  signal: AbortSignal;
}

export type View = (shown: Shown) => Promise<HTMLElement>;

const VIEWS: [string, string, View][] = [
  ["run", "Run", runView],
  ["checkpoint", "Checkpoint", checkpointView],
  ["tensor", "Tensor", tensorView],
  ["compare", "Compare", compareView],
  ["what-if", "What if", whatIfView],
];
// What views have in common goes with you from one to the other.
const CARRIED = ["run", "at", "key"];

const tabs = h("nav", { class: "tabs", "aria-label": "Views" });
const main = h("main", { id: "main", tabindex: -1 });
const place = h("span", { class: "place" });
let showing = new AbortController();
let known: Catalogue | null = null;

function bar(): HTMLElement {
  const name = h("a", { class: "brand", href: "#/" }, "shardkeep");
  return h("header", { class: "bar" }, h("a", { class: "skip", href: "#main", click: skip }, "Skip to the content"), name, place, tabs, themeButton());
}

function skip(event: Event): void {
  event.preventDefault();
  main.focus();
}

async function show(): Promise<void> {
  showing.abort();
  showing = new AbortController();
  const { signal } = showing;
  const asked = location.hash;
  const soon = setTimeout(() => signal.aborted || replace(main, waiting("Reading …")), 150);
  try {
    // What a run has saved since is listed, too.
    const catalogue = isReport && known ? known : await readCatalogue();
    known = catalogue;
    const hasRun = catalogue.runs.length > 0;
    const { view, query } = here();
    const named = VIEWS.find(([name]) => name === view) ?? VIEWS[hasRun ? 0 : 1];
    showTabs(named[0], query, hasRun);
    place.textContent = catalogue.home.places.map((one) => one.name).join(", ");
    document.title = `${named[1]} · ${place.textContent} · shardkeep`;
    const filled = { run: catalogue.runs[0]?.id ?? "", at: newest(catalogue), ...query };
    const made = await named[2]({ catalogue, query: filled, signal });
    if (!signal.aborted) replace(main, made);
  } catch (error) {
    if (!signal.aborted) replace(main, problem(error));
  } finally {
    clearTimeout(soon);
    // Tests wait for it.
    if (!signal.aborted) main.dataset.shown = asked;
  }
}

function showTabs(active: string, query: Record<string, string>, hasRun: boolean): void {
  const carried = Object.fromEntries(CARRIED.map((name) => [name, query[name]]));
  const shown = VIEWS.filter(([name]) => name !== "run" || hasRun);
  replace(
    tabs,
    shown.map(([name, title]) => h("a", { href: link(name, carried), "aria-current": name === active ? "page" : undefined }, title)),
  );
}

/** What went wrong, and what to do. */
export function problem(error: unknown): HTMLElement {
  if (error instanceof Problem) {
    const title = { not_found: "It is not there", corrupt: "It is damaged", report: "Not in this report", away: "No answer" }[error.kind];
    return notice(title ?? "That did not work", error.message, "error");
  }
  console.error(error);
  return notice("That did not work", error instanceof Error ? error.message : String(error), "error");
}

function keys(event: KeyboardEvent): void {
  const typing = event.target instanceof HTMLElement && /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/" && !typing) {
    event.preventDefault();
    const search = document.querySelector<HTMLInputElement>("input[type=search]");
    if (search) search.focus();
    else go("checkpoint", { ...here().query, focus: "search" });
  }
}

async function start(): Promise<void> {
  document.body.append(bar(), main);
  await prepare();
  window.addEventListener("hashchange", () => void show());
  window.addEventListener("themechange", () => void show());
  window.addEventListener("keydown", keys);
  await show();
}

void start();
