// Plots: amounts by window with the limit drawn in, as stacked bars or lines, and the same as a table.

import { html, useEffect, useRef, useState } from "./vendor/htm-3.1.1/standalone.module.js";
import { amount, compact, dayText, windowTime } from "./format.js";

const LIBRARY = new URL("./vendor/uplot-1.6.32/uPlot.iife.min.js", import.meta.url);
const SHEET = new URL("./vendor/uplot-1.6.32/uPlot.min.css", import.meta.url);
const COLOURS = 7;
const LIMIT_ROOM = 3; // a line more than so many times higher than everything else is told, not drawn

let library = null;

// Fetched when the first plot is drawn; most looks at the page draw none.
function loaded() {
  library ??= new Promise((resolve, reject) => {
    const sheet = Object.assign(document.createElement("link"), { rel: "stylesheet", href: SHEET });
    const script = Object.assign(document.createElement("script"), { src: LIBRARY });
    script.onload = () => resolve(window.uPlot);
    script.onerror = () => reject(new Error("the plots could not be loaded"));
    document.head.append(sheet, script);
  });
  return library;
}

// What a name of the style sheet stands for now, as a canvas understands it.
function token(name) {
  if (name === "--font") return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

// The largest series by themselves, all others as one, and those last.
export function grouped(series, most = COLOURS) {
  const withTotals = series.map((one) => ({ ...one, total: one.values.reduce((sum, value) => sum + (value || 0), 0) }));
  withTotals.sort((a, b) => Boolean(a.isRest) - Boolean(b.isRest) || b.total - a.total);
  if (withTotals.length <= most) return withTotals;
  const rest = withTotals.slice(most - 1);
  const values = rest[0].values.map((_, at) => {
    const known = rest.map((one) => one.values[at]).filter((value) => value !== null);
    return known.length ? known.reduce((sum, value) => sum + value, 0) : null;
  });
  return [...withTotals.slice(0, most - 1), { label: rest.some((one) => one.isRest) ? "others" : `${rest.length} others`, values, total: rest.reduce((sum, one) => sum + one.total, 0) }];
}

// Each series on top of the ones before it.
export function stacked(series) {
  const sums = [];
  return series.map((one) => one.values.map((value, at) => {
    if (value === null && sums[at] === undefined) return null;
    sums[at] = (sums[at] || 0) + (value || 0);
    return sums[at];
  }));
}

export function isLimitDrawn(highest, limit) {
  return limit !== null && limit !== undefined && highest > 0 && limit <= highest * LIMIT_ROOM;
}

function axes(kind, unit, isNarrow) {
  const shared = { stroke: token("--quiet"), font: `11px ${token("--font")}`, ticks: { show: false }, grid: { stroke: token("--line"), width: 1 } };
  const time = { hourly: (text) => text.slice(11, 16), daily: (_, at) => dayText(at), monthly: (text) => text.slice(0, 7) }[kind];
  return [
    { ...shared, grid: { show: false }, space: isNarrow ? 56 : 64, size: 24, values: (_, splits) => splits.map((at) => {
      const text = new Date(at).toISOString();
      return kind === "hourly" && text.slice(11, 16) === "00:00" ? dayText(at) : time(text, at);
    }) },
    { ...shared, size: 56, space: 32, values: (_, splits) => splits.map((value) => (Number.isInteger(value) || unit ? compact(value, unit) : "")) },
  ];
}

function options({ uPlot, series, times, kind, unit, isStacked, width, height, limit, top, onCursor }) {
  const barred = uPlot.paths.bars({ size: [0.72, 48], radius: 0.12, align: times.length > 1 ? 1 : 0 });
  const lines = series.map((one, at) => {
    const colour = token(`--series-${(at % COLOURS) + 1}`);
    return isStacked
      ? { label: one.label, fill: colour, stroke: colour, width: 0, paths: barred, points: { show: false } }
      : { label: one.label, stroke: colour, width: 2, points: { size: 5, fill: colour } };
  });
  const step = times.length > 1 ? times[1] - times[0] : 3_600_000;
  return {
    width, height, ms: 1, padding: [10, 16, 0, 0],
    tzDate: (at) => uPlot.tzDate(new Date(at), "Etc/UTC"),
    legend: { show: false },
    cursor: { y: false, points: { show: !isStacked, size: 7 }, drag: { x: false, y: false }, focus: { prox: -1 } },
    scales: { x: { range: [times[0], times[times.length - 1] + (isStacked ? step : 0)] }, y: { range: [0, Math.max(1, top * 1.06)] } },
    axes: axes(kind, unit, width < 480),
    series: [{}, ...(isStacked ? [...lines].reverse() : lines)],
    hooks: {
      setCursor: [(plot) => onCursor(plot.cursor.idx)],
      draw: [(plot) => drawLimit(plot, limit, top)],
    },
  };
}

function drawLimit(plot, limit, top) {
  if (limit === null || limit === undefined || limit > top) return;
  const { ctx, bbox } = plot;
  const y = Math.round(plot.valToPos(limit, "y", true)) + 0.5;
  ctx.save();
  ctx.strokeStyle = token("--limit");
  ctx.lineWidth = 1.5 * devicePixelRatio;
  ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.restore();
}

// One limit's usage. `series` are {label, values}, `limit` what it lets through in a window.
export function Plot({ title, series, times, kind, unit, limit, limitText = "limit", isStacked = true, height = 220 }) {
  const box = useRef(null);
  const [at, setAt] = useState(null);
  const [failed, setFailed] = useState("");
  const shown = grouped(series);
  const sums = stacked(shown);
  const highest = Math.max(0, ...(isStacked ? sums : shown.map((one) => one.values)).flat().map((value) => value || 0));
  const isDrawn = isLimitDrawn(highest, limit);
  const top = isDrawn ? Math.max(highest, limit) : highest;
  useEffect(() => {
    let plot = null;
    let isOver = false;
    const draw = (uPlot) => {
      if (isOver || !box.current) return;
      if (plot) plot.destroy();
      const width = Math.max(200, box.current.clientWidth);
      const data = isStacked ? [times, ...[...sums].reverse()] : [times, ...shown.map((one) => one.values)];
      plot = new uPlot(options({ uPlot, series: shown, times, kind, unit, isStacked, width, height, limit: isDrawn ? limit : null, top, onCursor: (index) => setAt(index ?? null) }), data, box.current);
    };
    const again = () => window.uPlot && draw(window.uPlot);
    const resized = new ResizeObserver(() => plot && Math.abs(plot.width - box.current.clientWidth) > 2 && again());
    loaded().then((uPlot) => document.fonts.ready.then(() => draw(uPlot))).catch((error) => setFailed(error.message));
    box.current.style.minHeight = `${height}px`; // so that nothing jumps when it is drawn
    resized.observe(box.current);
    window.addEventListener("theme", again);
    return () => {
      isOver = true;
      resized.disconnect();
      window.removeEventListener("theme", again);
      if (plot) plot.destroy();
    };
  }, [JSON.stringify([series, times, isStacked, height, limit])]);
  const index = at === null || at >= times.length ? null : at;
  return html`<figure class="plot" aria-label=${title}>
    ${index === null ? null : html`<span class="quiet numbers at" aria-hidden="true">${windowTime(times[index], kind)} UTC</span>`}
    <div class="plot-box" ref=${box} aria-hidden="true"></div>
    ${failed ? html`<p class="bad-text">${failed}</p>` : null}
    <figcaption>
      <ul class="legend">${shown.map((one, place) => html`<li key=${one.label}><span class="swatch series-${(place % COLOURS) + 1}" aria-hidden="true"></span><bdi>${one.label}</bdi>
        <span class="numbers">${amount(index === null ? one.total : one.values[index], unit)}</span></li>`)}
        ${limit !== null && limit !== undefined ? html`<li><span class="swatch dash" aria-hidden="true"></span>${limitText} <span class="numbers">${amount(limit, unit)}</span>${isDrawn ? null : html` <span class="quiet">far above</span>`}</li>` : null}
      </ul>
      <${AsTable} title=${title} series=${shown} times=${times} kind=${kind} unit=${unit} />
    </figcaption></figure>`;
}

function AsTable({ title, series, times, kind, unit }) {
  return html`<details class="as-table"><summary>As a table</summary><div class="scroll" tabindex="0" role="group" aria-label=${`${title} as a table`}>
    <table><caption class="hidden-text">${title}</caption>
      <thead><tr><th scope="col">Window, UTC</th>${series.map((one) => html`<th scope="col" class="number" key=${one.label}><bdi>${one.label}</bdi></th>`)}</tr></thead>
      <tbody>${times.map((time, at) => html`<tr key=${time}><th scope="row" class="numbers">${windowTime(time, kind)}</th>${series.map(
        (one) => html`<td class="number" key=${one.label}>${amount(one.values[at], unit)}</td>`)}</tr>`)}</tbody></table></div></details>`;
}
