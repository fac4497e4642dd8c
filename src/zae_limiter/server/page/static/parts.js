// Small parts that all views are made of. Names come from anybody, so they are only ever text.

import { html, useEffect, useRef, useState } from "./vendor/htm-3.1.1/standalone.module.js";
import { ago, dateTime } from "./format.js";
import { serverNow } from "./data.js";

export function href(place, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  }
  const text = query.toString();
  return `#/${place}${text ? `?${text}` : ""}`;
}

export function go(place, params) {
  location.hash = href(place, params);
}

const PATHS = {
  overview: "M2.5 10.5 5.5 7l2.5 2.5 5.5-6M2.5 13.5h11",
  entities: "M6 7.5A2.5 2.5 0 1 0 6 2.5a2.5 2.5 0 0 0 0 5ZM1.5 13.5c0-2.5 2-4 4.5-4s4.5 1.5 4.5 4M11 3a2.3 2.3 0 0 1 0 4.4M12 9.8c1.6.5 2.5 1.8 2.5 3.7",
  limits: "M2 4.5h6M12 4.5h2M2 11.5h2M8 11.5h6M10 2.5v4M6 9.5v4",
  usage: "M2.5 13.5v-4M6.2 13.5v-8M9.8 13.5v-6M13.5 13.5v-11",
  audit: "M3 2.5h7l3 3v8H3zM5.5 7.5h5M5.5 10.5h5",
  health: "M1.5 8.5h3l2-5 3 9 2-4h3",
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10ZM10.7 10.7 14 14",
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1",
  moon: "M13.5 9.5A6 6 0 0 1 6.5 2.5a6 6 0 1 0 7 7Z",
  auto: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12ZM8 2v12",
  out: "M6 2.5H3v11h3M7 8h7M11.5 5.5 14 8l-2.5 2.5",
  close: "m4 4 8 8M12 4l-8 8",
  up: "M8 13V3M4 7l4-4 4 4",
};

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;
}

// A state is a shape and a word before it is a colour.
const SHAPES = {
  good: "M8 3a5 5 0 1 0 0 10A5 5 0 0 0 8 3Z",
  near: "M8 2.5 14.5 13.5h-13Z",
  bad: "M3 3h10v10H3Z",
  off: "M8 3a5 5 0 1 0 0 10A5 5 0 0 0 8 3Zm0 2a3 3 0 1 1 0 6 3 3 0 0 1 0-6Z",
};

export function Mark({ kind }) {
  return html`<svg class="mark ${kind}" viewBox="0 0 16 16" aria-hidden="true"><path d=${SHAPES[kind]} /></svg>`;
}

export function State({ kind, children }) {
  return html`<span class="state ${kind}"><${Mark} kind=${kind} />${children}</span>`;
}

export function EntityLink({ entity, resource, name }) {
  return html`<a class="name" href=${href("entity", { entity, resource })}
    ><bdi>${entity}</bdi>${name ? html` <span class="quiet"><bdi>${name}</bdi></span>` : null}</a>`;
}

// Limits as the command line writes them.
export function LimitTexts({ limits, none = "none" }) {
  if (!limits || !limits.length) return html`<span class="quiet">${none}</span>`;
  return html`<span class="chips">${limits.map(
    (limit) => html`<span class="chip" key=${limit.name}><bdi>${limit.text}</bdi></span>`,
  )}</span>`;
}

export function Switched({ by }) {
  if (!by) return null;
  const words = { off: "off", bypass: by.counted === false ? "past its limits, uncounted" : "past its limits", on: "on, overruling" };
  return html`<span class="state off"><${Mark} kind="off" /><span>${words[by.state] || by.state}${
    by.reason ? html`<span class="quiet">: <bdi>${by.reason}</bdi></span>` : null
  }</span></span>`;
}

// Times that grow older by themselves, all with one timer.
const aging = new Set();
setInterval(() => aging.forEach((turn) => turn()), 1000);

export function Ago({ at }) {
  const [, turn] = useState(0);
  useEffect(() => {
    const again = () => turn((old) => old + 1);
    aging.add(again);
    return () => aging.delete(again);
  }, []);
  return html`<time datetime=${new Date(at).toISOString()} title=${dateTime(at)}>${ago(at, serverNow())}</time>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><p class="empty-title">${title}</p><p>${children}</p></div>`;
}

export function ProblemNote({ problem, retry }) {
  if (!problem) return null;
  return html`<div class="note bad" role="alert"><${Mark} kind="bad" />
    <p><strong>${problem.isConnection ? "No connection" : problem.told.title || "That did not work"}.</strong>
    ${" "}<bdi>${problem.message}</bdi></p>
    ${retry ? html`<button class="button small" onClick=${retry}>Try again</button>` : null}</div>`;
}

export function Loading({ lines = 4 }) {
  return html`<div class="loading" aria-busy="true"><span class="hidden-text">Loading</span>
    ${Array.from({ length: lines }, (_, index) => html`<span class="bone" key=${index}></span>`)}</div>`;
}

// Data, or why there is none, or that it is on its way.
export function Shown({ of, children, lines }) {
  const note = html`<${ProblemNote} problem=${of.problem} retry=${of.reload} />`;
  if (of.data) return html`<div class="shown">${of.problem ? note : null}${children(of.data)}</div>`;
  return of.problem ? note : html`<${Loading} lines=${lines} />`;
}

export function PageHead({ title, children, above }) {
  return html`<header class="page-head"><div class="titles">${above}<h1 tabindex="-1">${title}</h1></div>
    <div class="actions">${children}</div></header>`;
}

export function Card({ title, aside, children, className = "" }) {
  const id = `card-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return html`<section class="card ${className}" aria-labelledby=${id}>
    <header class="card-head"><h2 id=${id}>${title}</h2><div class="aside">${aside}</div></header>
    ${children}</section>`;
}

// A table; the arrow keys go from row to row, by the first link of each.
export function Table({ caption, columns, rows, keyOf, className = "" }) {
  const body = useRef(null);
  const move = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const row = event.target.closest("tr");
    if (!step || !row || event.target.closest("select,input,textarea")) return;
    const all = [...body.current.rows];
    const next = all[all.indexOf(row) + step];
    const target = next && next.querySelector("a,button");
    if (target) {
      event.preventDefault();
      target.focus();
    }
  };
  return html`<div class="scroll" tabindex="0" role="group" aria-label=${caption}><table class=${`rows ${className}`}>
    <caption class="hidden-text">${caption}</caption>
    <thead><tr>${columns.map(
      (column) => html`<th scope="col" class=${column.kind || ""} key=${column.title}>${
        column.isSilent ? html`<span class="hidden-text">${column.title}</span>` : column.title
      }</th>`,
    )}</tr></thead>
    <tbody ref=${body} onKeyDown=${move}>${rows.map(
      (row, index) => html`<tr key=${keyOf ? keyOf(row) : index}>${columns.map(
        (column) => html`<td class=${`${column.kind || ""}${column.isSilent ? " silent" : ""}`} data-title=${column.title} key=${column.title}>${column.cell(row)}</td>`,
      )}</tr>`,
    )}</tbody></table></div>`;
}

// One of a few: radio buttons, so that arrow keys choose.
export function Segments({ label, value, options, onChoose }) {
  return html`<fieldset class="segments"><legend class="hidden-text">${label}</legend>${options.map(
    ([key, text]) => html`<label key=${key} class=${key === value ? "chosen" : ""}>
      <input type="radio" name=${`segments-${label}`} checked=${key === value} onChange=${() => onChoose(key)} />
      <span>${text}</span></label>`,
  )}</fieldset>`;
}

export function Field({ label, hint, children }) {
  return html`<label class="field"><span class="label">${label}</span>${children}${
    hint ? html`<span class="hint">${hint}</span>` : null
  }</label>`;
}

export function Pager({ first, count, next, onNext, onBack, hasBack }) {
  return html`<nav class="pager" aria-label="Pages"><span class="quiet numbers">${
    count > 1 ? `${first + 1}–${first + count}` : count ? first + 1 : "none"
  }</span>
    ${hasBack || next ? html`<button class="button small" disabled=${!hasBack} onClick=${onBack}>Back</button>
      <button class="button small" disabled=${!next} onClick=${onNext}>Next</button>` : null}</nav>`;
}

// Cursors only go forward, so where one was is kept to go back.
export function usePages(resetBy) {
  const [trail, setTrail] = useState({ by: resetBy, cursors: [null], firsts: [0] });
  const now = trail.by === resetBy ? trail : { by: resetBy, cursors: [null], firsts: [0] };
  const at = now.cursors.length - 1;
  return {
    cursor: now.cursors[at],
    first: now.firsts[at],
    hasBack: at > 0,
    onBack: () => setTrail({ by: resetBy, cursors: now.cursors.slice(0, -1), firsts: now.firsts.slice(0, -1) }),
    onward: (next, count) =>
      setTrail({ by: resetBy, cursors: [...now.cursors, next], firsts: [...now.firsts, now.firsts[at] + count] }),
  };
}
