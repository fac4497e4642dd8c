// One entity: its levels as they move, which limit wins and why, its family, its own limits, usage and audit.

import { html, useEffect, useState } from "./vendor/htm-3.1.1/standalone.module.js";
import { useLive, useView } from "./data.js";
import { amount, dateTime, plural } from "./format.js";
import { LevelBar } from "./levels.js";
import { BucketDialog, LimitsDialog, ParentDialog, SwitchDialog, switchText } from "./changes.js";
import { Family } from "./family.js";
import { AuditRows } from "./audit.js";
import { UsagePlots } from "./usage.js";
import { collapsed, merged, Refusal } from "./overview.js";
import { Card, Empty, EntityLink, go, href, LimitTexts, Mark, PageHead, Shown, State, Switched } from "./parts.js";

const HOUR_MS = 3_600_000;

export function Entity({ params, me }) {
  const entity = params.get("entity") || "";
  const found = useView("entity", { entity }, { isWanted: Boolean(entity) });
  const [live, setLive] = useState(null);
  const [refusals, setRefusals] = useState([]);
  const [dialog, setDialog] = useState(null);
  const [turn, setTurn] = useState(0);
  const again = () => {
    found.reload();
    setTurn((old) => old + 1);
  };
  useEffect(() => {
    setLive(null);
    setRefusals([]);
  }, [entity]);
  useEffect(() => setLive(null), [found.data]);
  useLive({ entity }, {
    buckets: (told) => setLive({ entity, rows: told.rows }),
    refusals: (told) => setRefusals((old) => [...told.rows, ...old].slice(0, 50)),
  }, again);
  if (!entity) return html`<${Empty} title="No entity is named">Find one among <a href="#/entities">all entities</a>.<//>`;
  const open = (kind, more = {}) => setDialog({ kind, ...more });
  return html`<${Shown} of=${found} lines=${10}>${(data) => {
    const buckets = live && live.entity === entity ? live.rows : data.buckets;
    return html`<${Head} data=${data} me=${me} open=${open} />
    <div class="columns wide-first">
      <div class="column">
        <${Buckets} rows=${buckets} entity=${entity} chosen=${params.get("resource")} me=${me} open=${open} turn=${turn} />
        <${RecentUsage} entity=${entity} resources=${buckets.map((row) => row.resource)} chosen=${params.get("resource")} turn=${turn} />
        <${Card} title="Audit" aside=${html`<a href=${href("audit", { entity })}>all</a>`}><${AuditRows} of=${{ entity }} size=${5} turn=${turn} isShort /><//>
      </div>
      <div class="column">
        <${Card} title="Family" aside=${me.changes && data.exists ? html`<button class="button small" onClick=${() => open("parent")}>Set parent</button>` : null}>
          <${Family} data=${data} /><//>
        <${Own} data=${data} me=${me} open=${open} />
        <${RecentRefusals} entity=${entity} fresh=${refusals} />
        <${Facts} data=${data} />
      </div>
    </div>
    <${Chosen} dialog=${dialog} data=${data} buckets=${buckets} onClose=${() => setDialog(null)} onDone=${again} />`;
  }}<//>`;
}

function Head({ data, me, open }) {
  const above = html`<p class="crumbs"><a href="#/entities">Entities</a>${data.chain.slice(1).reverse().map(
    (id) => html` <span aria-hidden="true">/</span> <${EntityLink} entity=${id} key=${id} />`)}</p>`;
  const title = html`<bdi>${data.entity}</bdi>${data.name && data.name !== data.entity ? html` <span class="quiet"><bdi>${data.name}</bdi></span>` : null}`;
  return html`<${PageHead} above=${above} title=${title}>
    <${Switched} by=${data.switch} />
    ${data.exists ? null : html`<span class="tag" title="It is limited all the same; create it to give it a name or a parent.">not created</span>`}
    ${me.changes ? html`<button class="button" onClick=${() => open("limits", { place: { level: "entity", entity: data.entity }, limits: [] })}>Set limits</button>
      <button class="button" onClick=${() => open("switch", { place: { level: "entity", entity: data.entity }, now: data.switch })}>Switch</button>` : null}<//>`;
}

function Chosen({ dialog, data, buckets, onClose, onDone }) {
  if (!dialog) return null;
  const { entity } = data;
  if (dialog.kind === "limits") return html`<${LimitsDialog} place=${dialog.place} limits=${dialog.limits} onClose=${onClose} onDone=${onDone} />`;
  if (dialog.kind === "switch") return html`<${SwitchDialog} place=${dialog.place} now=${dialog.now} onClose=${onClose} onDone=${onDone} />`;
  if (dialog.kind === "parent") return html`<${ParentDialog} entity=${entity} parent=${data.parent} onClose=${onClose} onDone=${onDone} />`;
  const bucket = buckets.find((one) => one.resource === dialog.resource) || dialog.bucket;
  return html`<${BucketDialog} verb=${dialog.kind} bucket=${bucket} onClose=${onClose} onDone=${onDone} />`;
}

function Buckets({ rows, entity, chosen, me, open, turn }) {
  const [why, setWhy] = useState(chosen);
  useEffect(() => setWhy(chosen), [chosen, entity]);
  const [other, setOther] = useState("");
  const isMissing = why && !rows.some((row) => row.resource === why);
  return html`<${Card} title="Levels now" aside=${html`<span class="quiet">${plural(rows.length, "resource")}</span>`}>
    ${rows.length ? null : html`<${Empty} title="Nothing was used yet">A bucket is made by the first acquire; until then everything is full.<//>`}
    ${rows.map((row) => html`<${Bucket} key=${row.resource} row=${row} isOpen=${why === row.resource} me=${me} open=${open} turn=${turn}
      onWhy=${() => setWhy(why === row.resource ? null : row.resource)} />`)}
    ${isMissing ? html`<div class="bucket"><header class="bucket-head"><h3><bdi>${why}</bdi></h3><span class="quiet">never used</span></header>
      <${Why} entity=${entity} resource=${why} turn=${turn} /></div>` : null}
    <form class="ask-why" onSubmit=${(event) => { event.preventDefault(); if (other.trim()) setWhy(other.trim()); }}>
      <label><span class="quiet">What would apply on</span> <input class="input small" value=${other} placeholder="another resource" autocomplete="off" spellcheck=${false}
        onInput=${(event) => setOther(event.target.value)} /></label><button class="button small" disabled=${!other.trim()}>Explain</button></form><//>`;
}

function Bucket({ row, isOpen, me, open, onWhy, turn }) {
  const { entity, resource } = row;
  const inDebt = row.levels.some((level) => level.available < 0);
  const act = (kind) => () => open(kind, { resource, bucket: row });
  return html`<div class="bucket"><header class="bucket-head"><h3><bdi>${resource}</bdi></h3>
      ${row.shards > 1 ? html`<span class="tag" title="A hot bucket is spread over shards.">${row.shards} shards</span>` : null}
      <div class="actions">
        ${me.changes ? html`<button class="button small" onClick=${act("top-up")}>Top up</button>
          <button class="button small" onClick=${act("reset")}>Reset</button>
          ${inDebt ? html`<button class="button small" onClick=${act("forgive")}>Forgive</button>` : null}` : null}
        <button class="button small" aria-expanded=${isOpen ? "true" : "false"} onClick=${onWhy}>Why</button></div></header>
    <div class="levels">${row.levels.map((level) => html`<${LevelBar} key=${level.limit.name} level=${level} at=${row.at_ms} owner=${`${entity} on ${resource}`} />`)}</div>
    ${isOpen ? html`<${Why} entity=${entity} resource=${resource} turn=${turn} />` : null}</div>`;
}

// Which limits apply: what each level says, which wins, and what it comes to.
function Why({ entity, resource, turn }) {
  const found = useView("explain", { entity, resource }, { after: turn });
  return html`<div class="why"><${Shown} of=${found} lines=${3}>${(data) => html`
    <div class="sentences"><${Binding} buckets=${data.buckets} />${data.sentences.map((text) => html`<p key=${text}><bdi>${text}</bdi></p>`)}</div>
    ${data.buckets.map((bucket, at) => html`<${ExplainedBucket} key=${bucket.entity} bucket=${bucket} isAlone=${data.buckets.length === 1} isFirst=${at === 0} />`)}`}<//></div>`;
}

// What would refuse first: of all that an acquire is charged to, the limit that has the least left.
function Binding({ buckets }) {
  const found = buckets.flatMap((bucket) => bucket.applying.filter((level) => level.binds).map((level) => ({ bucket, level })));
  if (!found.length) return null;
  const { bucket, level } = found.reduce((least, one) => (one.level.ratio < least.level.ratio ? one : least));
  return html`<p>first to refuse is <strong><bdi>${level.limit.name}</bdi></strong> of <strong><bdi>${bucket.entity}</bdi></strong>: it has the least left of its capacity</p>`;
}

// The levels that speak for one of the family; those above the entity are told in a line until somebody asks.
function ExplainedBucket({ bucket, isAlone, isFirst }) {
  const winner = bucket.levels.find((level) => level.wins);
  const table = html`<table class="levels-table"><caption class="hidden-text">Levels for ${bucket.entity}</caption>
    <thead><tr><th scope="col">Level</th><th scope="col">Says</th><th scope="col">So</th></tr></thead>
    <tbody>${bucket.levels.map((level) => html`<tr key=${level.source} class=${level.wins ? "wins" : ""}>
      <th scope="row"><bdi>${level.text}</bdi></th><td><${LimitTexts} limits=${level.limits} none="nothing" /></td>
      <td>${level.wins ? html`<${State} kind="good">wins<//>` : html`<span class="quiet">${level.so || ""}</span>`}</td></tr>`)}</tbody></table>`;
  if (isAlone) return table;
  return html`<details class="of-family" open=${isFirst}><summary><strong><bdi>${bucket.entity}</bdi></strong>
    <span class="quiet">${winner ? html`${winner.text}: <${LimitTexts} limits=${winner.limits} />` : "no level has limits"}</span></summary>${table}</details>`;
}

// Of one resource at a time, for limits differ from one to the other.
function RecentUsage({ entity, resources, chosen, turn }) {
  const [until] = useState(() => Math.ceil(Date.now() / HOUR_MS) * HOUR_MS);
  const [picked, setPicked] = useState(chosen);
  useEffect(() => setPicked(chosen), [chosen, entity]);
  const resource = picked || resources[0] || "";
  const all = [...new Set([...resources, ...(resource ? [resource] : [])])];
  const found = useView("usage", { entity, resource, window: "hourly", start_ms: until - 24 * HOUR_MS, end_ms: until }, { after: turn });
  const pick = all.length > 1
    ? html`<label><span class="hidden-text">Resource</span><select class="input small" value=${resource} onChange=${(event) => setPicked(event.target.value)}>
        ${all.map((one) => html`<option value=${one} key=${one}>${one}</option>`)}</select></label>`
    : null;
  return html`<${Card} title="Usage, last 24 hours" aside=${html`${pick} <a href=${href("usage", { entity, resource })}>more</a>`}>
    <${Shown} of=${found} lines=${5}>${(data) => html`<${UsagePlots} data=${data} kind="hourly" height=${150} />`}<//><//>`;
}

function Own({ data, me, open }) {
  const place = (config) => ({ level: "entity", entity: data.entity, resource: config.resource });
  return html`<${Card} title="Own limits">${data.own.length
    ? html`<ul class="plain">${data.own.map((config) => html`<li key=${config.resource || ""}><div class="row"><strong>${
        config.resource ? html`<bdi>${config.resource}</bdi>` : "all resources"}</strong>
        ${me.changes ? html`<button class="button small" onClick=${() => open("limits", { place: place(config), limits: config.limits })}
          aria-label=${`Edit the limits on ${config.resource || "all resources"}`}>Edit</button>` : null}</div>
        <${LimitTexts} limits=${config.limits} none="no limits, other settings" />
        ${config.on_unavailable ? html`<p class="quiet">store unreachable: ${config.on_unavailable}</p>` : null}</li>`)}</ul>`
    : html`<p class="quiet pad">None: the limits of its resources or of the system apply.</p>`}
    ${data.switch ? html`<p class="pad"><${Mark} kind="off" /> <bdi>${switchText(data.switch)}</bdi></p>` : null}<//>`;
}

function RecentRefusals({ entity, fresh }) {
  const found = useView("refusals", { entity, limit_rows: 50 });
  const rows = collapsed(merged(fresh, found.data ? found.data.rows : []));
  return html`<${Card} title="Refused lately">${rows.length
    ? html`<ol class="ticker short">${rows.slice(0, 10).map((row) => html`<${Refusal} key=${row.key} row=${row} isShort />`)}</ol>`
    : html`<p class="quiet pad">Not lately.</p>`}<//>`;
}

function Facts({ data }) {
  const more = Object.entries(data.metadata || {});
  if (!data.created_ms && !more.length) return null;
  return html`<${Card} title="Details"><dl class="facts">
    ${data.created_ms ? html`<dt>Created</dt><dd class="numbers">${dateTime(data.created_ms)}</dd>` : null}
    ${more.map(([name, value]) => html`<dt key=${name}><bdi>${name}</bdi></dt><dd key=${`${name}=`}><bdi>${typeof value === "string" ? value : typeof value === "number" ? amount(value) : JSON.stringify(value)}</bdi></dd>`)}</dl><//>`;
}
