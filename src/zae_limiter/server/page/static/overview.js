// The first screen: who is near a limit, who was refused and why, right now.

import { html, useEffect, useRef, useState } from "./vendor/htm-3.1.1/standalone.module.js";
import { useLive, useView } from "./data.js";
import { LevelBar, NEAR, Ratio, worstOf } from "./levels.js";
import { amount, duration, plural } from "./format.js";
import { Ago, Card, Empty, EntityLink, href, LimitTexts, Mark, PageHead, Shown, State, Switched, Table } from "./parts.js";

const REFUSALS_MAX = 50;
const SPOKEN_EVERY_MS = 5000;
const NEAREST = 12;
const RECENT_MS = 5 * 60_000;

const whoOf = (row) => `${row.process}|${row.entity}|${row.resource}|${row.limits}|${row.reason}`;

export function Overview({ me }) {
  const [near, setNear] = useState(null);
  const [fresh, setFresh] = useState([]);
  const overview = useView("overview", {}, { everyMs: Math.max(5000, me.refresh_ms || 0) });
  const told = overview.data;
  useEffect(() => {
    if (!told) return;
    setNear({ rows: told.near, at: told.now_ms });
    setFresh((old) => merged(told.refusals, old));
  }, [told]);
  useLive({}, {
    near: (event) => setNear({ rows: event.near, at: event.now_ms }),
    refusals: (event) => setFresh((old) => merged(event.rows, old)),
  }, overview.reload);
  return html`<${PageHead} title="Right now">${told ? html`<${Looked} told=${told} />` : null}<//>
    <${Shown} of=${overview} lines=${10}>${(data) => html`
      <${Summary} near=${near ? near.rows : data.near} refusals=${fresh} told=${data} />
      <div class="columns wide-first">
        <${Nearest} rows=${near ? near.rows : data.near} />
        <${Refusals} rows=${fresh} />
      </div>
      ${data.off.length ? html`<${Off} rows=${data.off} />` : null}
      <${Resources} rows=${data.resources} />`}<//>`;
}

// Newest first, each once, at most so many. A refusal that is repeated within a second is counted on: the row that
// is told then is later and has the higher count, and takes the place of the one before.
export function merged(...lists) {
  const kept = [];
  for (const row of lists.flat().sort((a, b) => b.at_ms - a.at_ms || b.count - a.count)) {
    const later = kept.find((one) => whoOf(one) === whoOf(row) && one.at_ms - row.at_ms < 1000 && one.count >= row.count);
    if (!later && kept.push(row) === REFUSALS_MAX) break;
  }
  return kept;
}

// Whoever tries again and again is one line, with how often; else it would hide all others.
export function collapsed(rows) {
  const lines = new Map();
  for (const row of rows) {
    const key = `${row.entity}|${row.resource}|${row.limits}|${row.reason}`;
    const line = lines.get(key);
    lines.set(key, line ? { ...line, count: line.count + row.count } : { ...row, key });
  }
  return [...lines.values()];
}

function isRefusing(bucket) {
  return bucket.levels.some((level) => level.refuses);
}

function Looked({ told }) {
  if (told.is_all) return html`<span class="quiet">${plural(told.looked_at, "bucket")}, all of them</span>`;
  return html`<span class="quiet" title="The others have not been used lately, or there are too many to look at each.">
    ${plural(told.looked_at, "bucket")} looked at of ${amount(told.buckets_known)}</span>`;
}

function Summary({ near, refusals, told }) {
  const refusing = near.filter(isRefusing).length;
  const close = near.filter((bucket) => !isRefusing(bucket) && worstOf(bucket).ratio <= NEAR).length;
  const recent = refusals.filter((row) => row.at_ms > told.now_ms - RECENT_MS);
  const count = recent.reduce((sum, row) => sum + (row.count || 1), 0);
  return html`<dl class="summary">
    <${Figure} title="Refusing" value=${refusing} kind=${refusing ? "bad" : "good"} of="with an empty limit" />
    <${Figure} title="Near a limit" value=${close} kind=${close ? "near" : "good"} of="a fifth or less is left" />
    <${Figure} title="Refused" value=${count} kind=${count ? "bad" : "good"} of="in five minutes" />
    <${Figure} title="Switched" value=${told.off.length} kind=${told.off.length ? "off" : "good"} of="off, or past limits" />
  </dl>`;
}

function Figure({ title, value, kind, of }) {
  return html`<div class="figure"><dt><${Mark} kind=${kind} />${title}</dt>
    <dd><span class="big numbers">${amount(value)}</span> <span class="quiet">${of}</span></dd></div>`;
}

function Nearest({ rows }) {
  const [isAll, setAll] = useState(false);
  const order = [...rows].sort((one, other) => isRefusing(other) - isRefusing(one)); // else as the server has them
  const shown = isAll ? order : order.slice(0, NEAREST);
  const columns = [
    { title: "Entity", kind: "who", cell: (row) => html`<${EntityLink} entity=${row.entity} resource=${row.resource} />
      <span class="quiet on"><bdi>${row.resource}</bdi></span>` },
    { title: "Limit", cell: (row) => html`<bdi class="chip">${worstOf(row).limit.name}</bdi>` },
    { title: "Left", kind: "stretch", cell: (row) => html`<${LevelBar} level=${worstOf(row)} at=${row.at_ms} owner=${`${row.entity} on ${row.resource}`} isBare />` },
  ];
  return html`<${Card} title="Nearest to a limit">${rows.length
    ? html`<${Table} caption="Buckets nearest to a limit" columns=${columns} rows=${shown} keyOf=${(row) => `${row.entity}|${row.resource}`} className="nearest" />
      ${rows.length > NEAREST ? html`<button class="button more" aria-expanded=${isAll ? "true" : "false"} onClick=${() => setAll(!isAll)}>${isAll ? "Show fewer" : `Show ${rows.length - NEAREST} more`}</button>` : null}`
    : html`<${Empty} title="Nobody is near a limit">
        Buckets appear here when someone has used most of a limit. <a href="#/entities">All entities</a><//>`}<//>`;
}

// What was refused. It stands still while somebody points at it or reads it by keyboard.
function Refusals({ rows }) {
  const [held, setHeld] = useState(null);
  const [spoken, setSpoken] = useState("");
  const last = useRef({ at: 0, newest: rows.length ? rows[0].at_ms : 0 });
  useEffect(() => {
    const missed = rows.filter((row) => row.at_ms > last.current.newest);
    if (!missed.length) return undefined;
    const say = () => {
      last.current = { at: Date.now(), newest: missed[0].at_ms };
      const [one] = missed;
      const others = missed.length > 1 ? `, and ${missed.length - 1} more` : "";
      const by = one.reason ? `, which is off: ${one.reason}` : ` by ${one.limits.join(", ")}`;
      setSpoken(`${one.entity} was refused on ${one.resource}${by}${others}`);
    };
    const timer = setTimeout(say, Math.max(0, last.current.at + SPOKEN_EVERY_MS - Date.now()));
    return () => clearTimeout(timer);
  }, [rows]);
  const shown = collapsed(held || rows);
  const waiting = held ? rows.filter((row) => row.at_ms > (held[0] ? held[0].at_ms : 0)).length : 0;
  const hold = () => setHeld((old) => old || rows);
  const release = (event) => {
    if (!event.currentTarget.contains(event.relatedTarget)) setHeld(null);
  };
  const aside = held && waiting ? html`<span class="tag">${waiting} new, held</span>` : null;
  return html`<${Card} title="Refused" aside=${aside}>
    <p class="hidden-text" role="status">${spoken}</p>
    ${shown.length
      ? html`<ol class="ticker" onMouseEnter=${hold} onMouseLeave=${release} onfocusin=${hold} onfocusout=${release}>
          ${shown.map((row) => html`<${Refusal} row=${row} key=${row.key} />`)}</ol>`
      : html`<${Empty} title="Nobody was refused">Refusals appear here as they happen, with the limit or the switch that said no.<//>`}<//>`;
}

// What to wait for. A seat is free when somebody is done, so what is known of it is the latest instant.
function Again({ row }) {
  if (row.retry_after_ms === null) return " · never passes";
  return html` · <span class="unbroken">again in ${row.retry_after_is_latest ? "at most " : ""}${duration(row.retry_after_ms)}</span>`;
}

export function Refusal({ row, isShort = false }) {
  const units = row.units || {};
  const told = ([name, value]) => (units[name] ? amount(value, units[name]) : `${amount(value)} ${name}`);
  const asked = Object.entries(row.requested || {}).map(told).join(", ");
  return html`<li class="refusal"><${Mark} kind=${row.reason ? "off" : "bad"} />
    <div class="what"><p>${isShort ? null : html`<${EntityLink} entity=${row.entity} resource=${row.resource} />`}<span class="quiet on"><bdi>${row.resource}</bdi></span></p>
      ${row.reason ? html`<p class="quiet"><strong>Switched off</strong>: <bdi>${row.reason}</bdi></p>`
        : html`<p class="quiet"><strong><bdi>${row.limits.join(", ")}</bdi></strong> said no${asked ? html` to <bdi>${asked}</bdi>` : null}<${Again} row=${row} /></p>`}</div>
    <div class="when numbers quiet"><${Ago} at=${row.at_ms} />${row.count > 1 ? html`<span class="tag">×${amount(row.count)}</span>` : null}</div></li>`;
}

function Off({ rows }) {
  return html`<${Card} title="Switched off, or past limits"><ul class="plain">${rows.map(
    (row) => html`<li key=${`${row.entity}|${row.resource}|${row.level}`}>
      ${row.entity ? html`<${EntityLink} entity=${row.entity} />` : html`<strong>${row.level === "system" ? "Everybody" : "All entities"}</strong>`}
      ${row.resource ? html` <span class="quiet on"><bdi>${row.resource}</bdi></span>` : null} <${Switched} by=${row} /></li>`,
  )}</ul><//>`;
}

function Resources({ rows }) {
  const columns = [
    { title: "Resource", kind: "who", cell: (row) => html`<a class="name" href=${href("limits", { level: "resource", resource: row.resource })}><bdi>${row.resource}</bdi></a>` },
    { title: "Limits", kind: "stretch", cell: (row) => html`<${LimitTexts} limits=${row.limits} none="the system's, or their own" />` },
    { title: "Buckets", kind: "number", cell: (row) => amount(row.buckets) },
    { title: "Refusing", kind: "number", cell: (row) => (row.refusing ? html`<${State} kind="bad">${amount(row.refusing)}<//>` : html`<span class="quiet">0</span>`) },
    { title: "Least left", kind: "number", cell: (row) => html`<${Ratio} value=${row.worst_ratio} refusing=${row.refusing > 0} />` },
    { title: "Usage", kind: "number", isSilent: true, cell: (row) => html`<a href=${href("usage", { resource: row.resource })} aria-label=${`Usage of ${row.resource}`}>usage</a>` },
  ];
  return html`<${Card} title="Resources">${rows.length
    ? html`<${Table} caption="Resources that are in use" columns=${columns} rows=${rows} keyOf=${(row) => row.resource} />`
    : html`<${Empty} title="Nothing is limited yet">Set the system’s limits on the page <a href="#/limits">Limits</a>, or run${" "}
        <code>zae-limiter resource set-defaults gpt-4 -l rpm:60</code>. Resources appear when they are used.<//>`}<//>`;
}
