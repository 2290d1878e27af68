// Which checkpoints can be chosen? Those of all runs that were opened, and those that stand alone.
import type { Home, Run, Step } from "./answers";
import { answered, get, isReport } from "./api";

export interface Chosen {
  at: string;
  title: string;
  run: string | null;
}

export interface Catalogue {
  home: Home;
  runs: Run[];
}

export async function readCatalogue(): Promise<Catalogue> {
  const home = await get<Home>("home");
  const runs = home.places.filter((place) => place.kind === "run");
  return { home, runs: await Promise.all(runs.map((place) => get<Run>("run", { run: place.id }))) };
}

/** All that can be opened, in order; of a report, all that it holds. */
export function checkpoints(catalogue: Catalogue): Chosen[] {
  const several = catalogue.home.places.length > 1;
  const found: Chosen[] = [];
  for (const place of catalogue.home.places) {
    if (place.kind === "checkpoint") found.push({ at: place.id, title: place.name, run: null });
    for (const step of catalogue.runs.find((run) => run.id === place.id)?.steps ?? []) {
      if (!opens(step)) continue;
      found.push({ at: step.at, title: `${several ? `${place.name} ` : ""}step ${step.step}${step.state === "damaged" ? " (damaged)" : ""}`, run: place.id });
    }
  }
  if (!isReport) return found;
  const held = new Set(answered("checkpoint").map((query) => query.at));
  return found.filter((one) => held.has(one.at));
}

/** Whether there is something to open; of a damaged one, what is left. */
export function opens(step: Step): boolean {
  return step.state === "committed" || step.state === "damaged";
}

/** The one that is meant when nothing is said: the newest. */
export function newest(catalogue: Catalogue): string {
  return (wholeOnes(catalogue).at(-1) ?? checkpoints(catalogue).at(-1))?.at ?? "";
}

/** Those that nothing is known to be wrong with. */
export function wholeOnes(catalogue: Catalogue): Chosen[] {
  const damaged = new Set(catalogue.runs.flatMap((run) => run.steps.filter((one) => one.state === "damaged").map((one) => one.at)));
  return checkpoints(catalogue).filter((one) => !damaged.has(one.at));
}

export function titleOf(catalogue: Catalogue, at: string): string {
  return checkpoints(catalogue).find((one) => one.at === at)?.title ?? at;
}
