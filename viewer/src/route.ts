// Where are we? The address says it, so that a link shows what its sender saw.

export interface Route {
  view: string;
  query: Record<string, string>;
}

export function here(): Route {
  const [view, rest] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { view, query: Object.fromEntries(new URLSearchParams(rest ?? "")) };
}

export function link(view: string, query: Record<string, string | number | undefined>): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `#/${view}${text ? `?${text}` : ""}`;
}

export function go(view: string, query: Record<string, string | number | undefined>): void {
  location.hash = link(view, query);
}

/** Note something in the address without showing the view anew. */
export function note(changed: Record<string, string | number | undefined>): void {
  const { view, query } = here();
  history.replaceState(null, "", link(view, { ...query, ...changed }));
}
