// Who answers questions? The server, or the report that this page is.

export type Query = Record<string, string>;

export class Problem extends Error {
  constructor(
    message: string,
    readonly kind: string,
  ) {
    super(message);
  }
}

let answers: Record<string, unknown> | null = null;

/** Whether this page is a report: it has some answers, and gets no others. */
export const isReport = document.getElementById("shardkeep-data") !== null;

/** Unpack what a report holds. */
export async function prepare(): Promise<void> {
  const held = document.getElementById("shardkeep-data");
  if (held === null) return;
  const packed = Uint8Array.from(atob((held.textContent ?? "").trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  answers = JSON.parse(await new Response(stream).text());
  held.remove();
}

/** A question as one text; a report's answers go by it. */
function keyOf(page: string, query: Query): string {
  const names = Object.keys(query).sort();
  return [page, ...names.map((name) => `${name}=${query[name]}`)].join("\n");
}

/** Whether a report can answer; a server always can. */
export function canAnswer(page: string, query: Query): boolean {
  return answers === null || keyOf(page, query) in answers;
}

/** The questions about a page that a report answers. */
export function answered(page: string): Query[] {
  return Object.keys(answers ?? {})
    .filter((key) => key.startsWith(`${page}\n`))
    .map((key) =>
      Object.fromEntries(
        key
          .split("\n")
          .slice(1)
          .map((part) => [part.slice(0, part.indexOf("=")), part.slice(part.indexOf("=") + 1)]),
      ),
    );
}

/** The answer; a Problem says why there is none. */
export async function get<T>(page: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  if (answers !== null) {
    const found = answers[keyOf(page, query)];
    if (found === undefined) {
      throw new Problem("This report does not hold it. `shardkeep serve` shows everything.", "report");
    }
    return found as T;
  }
  let response: Response;
  try {
    response = await fetch(`/api/${page}?${new URLSearchParams(query)}`, { signal });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Problem("The viewer does not answer. Is `shardkeep serve` still running in its terminal?", "away");
  }
  const text = await response.text();
  if (response.ok) return JSON.parse(text) as T;
  let said = { kind: "error", message: text };
  try {
    said = JSON.parse(text);
  } catch {
    // The gate speaks plain text.
  }
  throw new Problem(said.message, said.kind);
}
