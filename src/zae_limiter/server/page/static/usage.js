// Usage over time: by entity and resource, in hours, days or months, with the limit drawn in.

import { html, useEffect, useState } from "./vendor/htm-3.1.1/standalone.module.js";
import { useView } from "./data.js";
import { amount } from "./format.js";
import { Plot } from "./plot.js";
import { Empty, Field, go, PageHead, Segments, Shown } from "./parts.js";

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const WINDOWS = [["hourly", "Hours"], ["daily", "Days"], ["monthly", "Months"]];
const SPANS = {
  hourly: [["1", "24 h"], ["3", "3 days"], ["7", "7 days"]],
  daily: [["14", "14 days"], ["30", "30 days"], ["90", "90 days"]],
  monthly: [["180", "6 months"], ["365", "12 months"]],
};
const NAMES = { hourly: "an hour", daily: "a day", monthly: "a month" };

// Until the end of the window that we are in, so that the last bar is there.
function rangeOf(kind, days) {
  const step = kind === "hourly" ? HOUR_MS : DAY_MS;
  const end = Math.ceil((Date.now() + 1) / step) * step;
  return { start_ms: end - Number(days) * DAY_MS, end_ms: end };
}

export function Usage({ params }) {
  const kind = SPANS[params.get("window")] ? params.get("window") : "hourly";
  const entity = params.get("entity") || "";
  const overview = useView("overview", {});
  const names = overview.data ? overview.data.resources.map((one) => one.resource) : [];
  // Nobody in particular on nothing in particular is no question: begin with the resource that is most in need.
  const resource = params.get("resource") || (entity ? "" : names[0] || "");
  const isAsked = Boolean(entity || resource);
  const days = SPANS[kind].some(([key]) => key === params.get("days")) ? params.get("days") : SPANS[kind][0][0];
  const isStacked = params.get("as") !== "lines";
  const set = (more) => go("usage", { entity, resource, window: kind, days, as: isStacked ? null : "lines", ...more });
  const [typed, setTyped] = useState({ entity, resource });
  useEffect(() => setTyped({ entity, resource }), [entity, resource]);
  const [range, setRange] = useState(() => rangeOf(kind, days));
  useEffect(() => setRange(rangeOf(kind, days)), [kind, days]);
  const found = useView("usage", { entity, resource, window: kind, ...range }, { isWanted: isAsked });
  const submit = (event) => {
    event.preventDefault();
    set({ entity: typed.entity.trim(), resource: typed.resource.trim() });
  };
  return html`<${PageHead} title="Usage">
      <${Segments} label="Window" value=${kind} options=${WINDOWS} onChoose=${(chosen) => set({ window: chosen, days: null })} />
      <${Segments} label="Time" value=${days} options=${SPANS[kind]} onChoose=${(chosen) => set({ days: chosen })} />
      <${Segments} label="Drawn as" value=${isStacked ? "stacked" : "lines"} options=${[["stacked", "Stacked"], ["lines", "Lines"]]}
        onChoose=${(chosen) => set({ as: chosen === "lines" ? "lines" : null })} /><//>
    <form class="filters" onSubmit=${submit}>
      <${Field} label="Entity"><input class="input" value=${typed.entity} placeholder="all" autocomplete="off" spellcheck=${false}
        onInput=${(event) => setTyped({ ...typed, entity: event.target.value })} /><//>
      <${Field} label="Resource"><input class="input" list="usage-resources" value=${typed.resource} placeholder=${entity ? "all" : ""} autocomplete="off" spellcheck=${false}
        onInput=${(event) => setTyped({ ...typed, resource: event.target.value })} /><//>
      <datalist id="usage-resources">${names.map((one) => html`<option value=${one} key=${one} />`)}</datalist>
      <button class="button">Show</button>
      ${entity ? html`<button type="button" class="button quiet-button" onClick=${() => set({ entity: null })}>All entities</button>` : null}</form>
    ${overview.data && !isAsked ? html`<section class="card" aria-label="Usage"><${Empty} title="Nothing was used yet">Usage is told by entity and resource. Name an entity above, or come back when something was used.<//></section>` : null}
    <${Shown} of=${isAsked || overview.problem ? (isAsked ? found : overview) : { data: null }} lines=${8}>${(data) => html`<div class="plots"><${UsagePlots} data=${data} kind=${kind} isStacked=${isStacked} isCarded /></div>`}<//>`;
}

// What tells the series apart is named, and nothing else.
function labelOf(series, data) {
  const words = [];
  if (series.entity !== null && data.entities.length > 1) words.push(series.entity);
  if (data.resources.length > 1 || !words.length) words.push(series.resource);
  return words.join(" · ");
}

// The series of one limit. Of all entities together there is one that counts everything: what those with a series of
// their own leave of it are the others.
export function seriesOf(data, name) {
  const found = data.series.filter((one) => one.limit === name);
  const named = found.filter((one) => one.entity !== null).map((one) => ({ ...one, label: labelOf(one, data) }));
  const others = found.filter((one) => one.entity === null).flatMap((all) => {
    const parts = named.filter((one) => one.resource === all.resource);
    if (!parts.length) return [{ ...all, label: labelOf(all, data) }];
    const values = all.values.map((value, at) => (value === null ? null : Math.max(0, value - parts.reduce((sum, one) => sum + (one.values[at] || 0), 0))));
    return values.some(Boolean) ? [{ ...all, values, isRest: true, label: data.resources.length > 1 ? `others · ${all.resource}` : "others" }] : [];
  });
  const all = [...named, ...others].map(({ label, values, isRest }) => ({ label, values, isRest }));
  const used = all.filter((one) => one.values.some(Boolean));
  return used.length ? used : all.slice(0, 1);
}

// A plot for each limit, for what they count cannot be added up.
export function UsagePlots({ data, kind, isStacked = true, isCarded = false, height = 220 }) {
  const used = data.limits.filter((limit) => data.series.some((one) => one.limit === limit.name));
  if (!used.length) {
    return html`<${Empty} title="No usage was counted here">${data.pending
      ? html`What was used lately is counted soon; on this store <code>zae-limiter aggregate</code> counts it.`
      : html`Nothing was used in this time, or nobody counts it: run <code>zae-limiter aggregate</code> beside your programs.`}<//>`;
  }
  const isPart = data.is_all === false ? html`<p class=${isCarded ? "hint" : "hint pad"}>There is more than was read: choose a shorter time, or one entity.</p>` : null;
  const pending = data.pending ? html`<p class=${isCarded ? "hint" : "hint pad"}>The last windows are not counted to their end yet.</p>` : null;
  return html`${used.map((limit) => {
    const series = seriesOf(data, limit.name);
    const isOfEach = data.series.some((one) => one.entity === null);
    const head = html`<header class="plot-head"><h3><bdi>${limit.name}</bdi></h3>
      <span class="quiet"><span class="numbers">${amount(limit.total, limit.unit)}</span> in all${
        limit.per_window ? html`, at most <span class="numbers">${amount(limit.per_window, limit.unit)}</span> ${NAMES[kind]}${isOfEach ? " each" : ""}` : null}</span></header>`;
    const plot = html`<${Plot} title=${`Usage of ${limit.name}`} series=${series} times=${data.times} kind=${kind} unit=${limit.unit}
      limit=${limit.per_window} limitText=${isOfEach ? "limit of each" : "limit"} isStacked=${isStacked} height=${height} />`;
    return isCarded ? html`<section class="card" key=${limit.name} aria-label=${limit.name}>${head}${plot}</section>` : html`<div class="plain-plot" key=${limit.name}>${head}${plot}</div>`;
  })}${pending}${isPart}`;
}
