// How has the run gone? Its checkpoints over time, what each cost, and which are kept.
import type { Run, Step } from "../answers";
import { get, isReport, Problem } from "../api";
import { opens } from "../catalogue";
import { type Axis, lines } from "../charts";
import { card, choice, facts, h, notice, replace, toggle } from "../dom";
import type { Shown } from "../main";
import { link, note } from "../route";
import { count, drawable, moment, num, seconds, size } from "../words";

const STATES: Record<string, [string, string]> = {
  committed: ["✓", "good"],
  "in progress": ["…", "busy"],
  "half-written": ["◌", "odd"],
  damaged: ["✕", "bad"],
  unknown: ["?", "bad"],
};

export async function runView({ catalogue, query, signal }: Shown): Promise<HTMLElement> {
  const page = h("div", { class: "page" });
  const first = catalogue.runs.find((run) => run.id === query.run) ?? catalogue.runs[0];
  const body = h("div", { class: "stack" });
  const live = h("span", { class: "live", role: "status" });
  const choose = { metric: query.metric ?? "", axis: query.axis ?? "time" };
  let shown = "";
  let run = first;
  const draw = () => {
    shown = JSON.stringify(run.steps);
    replace(body, run.steps.length ? content(run, choose, draw) : empty(run));
  };
  const title = h("div", { class: "title" }, h("h1", {}, first.name), live);
  if (catalogue.runs.length > 1) {
    const options = catalogue.runs.map((one): [string, string] => [one.id, one.path]);
    title.append(choice("run", options, first.id, (id) => (location.hash = link("run", { run: id }))));
  }
  page.append(title, body);
  draw();
  if (!isReport) watch(first.id, first.look_again, live, signal, (found) => {
    run = found;
    if (JSON.stringify(found.steps) !== shown) draw();
  });
  return page;
}

/** Ask again and again while somebody looks. */
function watch(id: string, wait: number, live: HTMLElement, signal: AbortSignal, told: (run: Run) => void): void {
  live.textContent = "live";
  live.dataset.state = "on";
  const look = async () => {
    if (signal.aborted) return;
    if (!document.hidden) {
      try {
        const found = await get<Run>("run", { run: id }, signal);
        wait = found.look_again;
        if (!signal.aborted) told(found);
        live.textContent = "live";
        live.dataset.state = "on";
      } catch (error) {
        if (signal.aborted) return;
        live.textContent = error instanceof Problem ? error.message : "not live";
        live.dataset.state = "off";
      }
    }
    setTimeout(look, wait * 1000);
  };
  setTimeout(look, wait * 1000);
}

function empty(run: Run): HTMLElement {
  return notice(
    "No checkpoints yet",
    `No folder in ${run.path} is called step-<number>. This page shows the first one as soon as it is saved; if the run saves elsewhere, start the viewer with that folder.`,
  );
}

function content(run: Run, chosen: { metric: string; axis: string }, again: () => void): HTMLElement[] {
  const good = run.steps.filter((one) => one.state === "committed");
  const last = good.at(-1);
  const states = new Map<string, number>();
  for (const one of run.steps) states.set(one.state, (states.get(one.state) ?? 0) + 1);
  const said = [...states].map(([state, n]) => `${n} ${state}`).join(", ");
  const rules = rulesOf(run);
  return [
    facts([
      ["checkpoints", said],
      ["newest", last ? h("a", { href: link("checkpoint", { at: last.at }) }, `step ${last.step}`) : "none"],
      ["size", size(good.reduce((sum, one) => sum + one.nbytes, 0))],
      ["kept", rules.length ? rules.join(", ") : "all"],
      ["path", h("code", {}, run.path)],
    ]),
    charts(run, good, chosen, again),
    table(run.steps),
  ];
}

function rulesOf(run: Run): string[] {
  const { last, every, best } = run.keep;
  return [last && `last ${last}`, every && `every ${every}`, best && `best ${best[2]} by ${best[0]} (${best[1]})`].filter((rule): rule is string => Boolean(rule));
}

function charts(run: Run, good: Step[], chosen: { metric: string; axis: string }, again: () => void): HTMLElement {
  const metrics = [...new Set(good.flatMap((one) => Object.keys(one.metrics)))];
  const metric = metrics.includes(chosen.metric) ? chosen.metric : (metrics.find((name) => /loss/i.test(name)) ?? metrics[0]);
  const isTime = chosen.axis === "time";
  const ordered = [...good].sort((a, b) => (isTime ? a.saved_at - b.saved_at : a.step - b.step));
  const axis: Axis = { label: "step", values: ordered.map((one) => (isTime ? one.saved_at : one.step)), isTime };
  const key = `run-${run.id}`;
  const set = (changed: Partial<typeof chosen>) => {
    Object.assign(chosen, changed);
    note(changed);
    again();
  };
  const controls = [
    metrics.length > 1 && choice("metric", metrics.map((name): [string, string] => [name, name]), metric, (value) => set({ metric: value })),
    toggle("over steps", !isTime, (on) => set({ axis: on ? "step" : "time" })),
  ];
  return card(
    isTime ? "Over time" : "Over steps",
    controls,
    strip(run.steps, isTime),
    h(
      "div",
      { class: "charts" },
      metric !== undefined && lines(metric, axis, [{ label: metric, values: ordered.map((one) => drawable(one.metrics[metric])) }], key),
      lines("size", axis, [{ label: "size", values: ordered.map((one) => one.nbytes), text: size, fromZero: true, isBytes: true }], key),
      lines(
        "duration and time blocked",
        axis,
        [
          { label: "duration", values: ordered.map((one) => one.seconds), text: seconds, fromZero: true },
          { label: "blocked", values: ordered.map((one) => one.blocked), text: seconds },
        ],
        key,
      ),
    ),
  );
}

/** Every checkpoint at its place, whatever its state. */
function strip(steps: Step[], isTime: boolean): HTMLElement {
  const where = (one: Step) => (isTime ? one.saved_at : one.step);
  const least = Math.min(...steps.map(where));
  const wide = Math.max(...steps.map(where)) - least || 1;
  const dots = steps.map((one) => {
    const [sign, kind] = STATES[one.state];
    const says = `step ${one.step}, ${one.state}${one.kept_by.length ? `, kept by ${one.kept_by.join(" and ")}` : ""}`;
    const dot = opens(one) ? h("a", { href: link("checkpoint", { at: one.at }) }) : h("span", { role: "img" });
    dot.className = `dot ${kind}${one.kept_by.length ? " kept" : ""}`;
    dot.title = says;
    dot.setAttribute("aria-label", says);
    dot.textContent = sign;
    dot.style.left = `${(100 * (where(one) - least)) / wide}%`;
    return dot;
  });
  return h("div", { class: "strip" }, h("div", { class: "strip-line" }, dots));
}

function table(steps: Step[]): HTMLElement {
  const metrics = [...new Set(steps.flatMap((one) => Object.keys(one.metrics)))];
  const right = (text: string) => h("td", { class: "num" }, text);
  const rows = [...steps].reverse().map((one) => {
    const [sign, kind] = STATES[one.state];
    return h(
      "tr",
      { class: one.left_behind ? "faint" : "" },
      h("td", { class: "num" }, opens(one) ? h("a", { href: link("checkpoint", { at: one.at }) }, one.step) : one.step),
      h("td", {}, h("span", { class: `state ${kind}`, title: one.problem }, `${sign} ${one.left_behind ? "left behind" : one.state}`), one.problem && h("small", {}, one.problem)),
      right(moment(one.saved_at)),
      right(one.nbytes ? size(one.nbytes) : ""),
      right(one.ranks ? String(one.ranks) : ""),
      right(seconds(one.seconds)),
      right(seconds(one.blocked)),
      metrics.map((name) => right(num(one.metrics[name]))),
      h("td", {}, one.kept_by.map((rule) => h("span", { class: "chip" }, rule))),
    );
  });
  const heads = ["step", "state", "saved", "size", "ranks", "duration", "blocked", ...metrics];
  return card(
    "Checkpoints",
    count(steps.length, "checkpoint"),
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of checkpoints" },
      h("table", {}, h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col", class: name === "state" ? "" : "num" }, name)), h("th", { scope: "col" }, "kept by"))), h("tbody", {}, rows)),
    ),
  );
}

