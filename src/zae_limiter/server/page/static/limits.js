// Limits by level: the system's, those of resources, those of entities.

import { html, useState } from "./vendor/htm-3.1.1/standalone.module.js";
import { useView } from "./data.js";
import { LimitsDialog, SwitchDialog } from "./changes.js";
import { Empty, EntityLink, Field, go, href, LimitTexts, PageHead, Pager, Segments, Shown, Switched, Table, usePages } from "./parts.js";

const LEVELS = [["system", "System"], ["resource", "Resources"], ["entity", "Entities"]];
const SAYS = {
  system: "For everybody, on every resource, unless something nearer says otherwise.",
  resource: "For every entity on a resource, unless the entity has limits of its own.",
  entity: "For one entity, on one resource or on all; nothing is nearer.",
};

export function switchOf(config) {
  if (config.disabled) return { state: "off", reason: config.disabled };
  if (config.disabled === false) return { state: "on" };
  if (config.bypass) return { state: "bypass", counted: config.bypass !== "uncounted" };
  return null;
}

function settingsOf(config) {
  const words = [];
  if (config.on_unavailable) words.push(`store unreachable: ${config.on_unavailable}`);
  if (config.cascade !== null && config.cascade !== undefined) words.push(config.cascade ? "charges parents too" : "does not cascade");
  return words.join("; ");
}

export function Limits({ params, me }) {
  const level = ["system", "resource", "entity"].includes(params.get("level")) ? params.get("level") : "system";
  const resource = params.get("resource") || "";
  const [dialog, setDialog] = useState(null);
  const pages = usePages(`${level}|${resource}`);
  const found = useView("configs", { level, resource: level === "entity" ? resource : null, cursor: pages.cursor });
  const add = () => setDialog({ kind: "limits", place: { level, resource: level === "resource" ? resource : null }, limits: [] });
  return html`<${PageHead} title="Limits">
      <${Segments} label="Level" value=${level} options=${LEVELS} onChoose=${(chosen) => go("limits", { level: chosen })} />
      ${me.changes && level === "resource" ? html`<button class="button primary" onClick=${add}>Set limits</button>` : null}<//>
    <p class="lead">${SAYS[level]} <span class="quiet">The nearest level that has limits wins.</span></p>
    ${level === "entity" ? html`<${OnResource} known=${found.data ? found.data.resources : []} resource=${resource} />` : null}
    <section class="card" aria-label="Limits of this level"><${Shown} of=${found} lines=${8}>${(data) => {
      const rows = level === "system" ? data.rows.filter(saysSomething) : data.rows;
      return rows.length
        ? html`<${Rows} rows=${rows} level=${level} chosen=${resource} me=${me} open=${setDialog} />
          ${level === "system" ? null : html`<footer class="card-foot"><${Pager} first=${pages.first} count=${rows.length} next=${data.next}
            hasBack=${pages.hasBack} onBack=${pages.onBack} onNext=${() => pages.onward(data.next, rows.length)} /></footer>`}`
        : html`<${None} level=${level} known=${resource ? [] : data.resources || []} me=${me} open=${() => setDialog({ kind: "limits", place: { level }, limits: [] })} />`;
    }}<//></section>
    ${dialog && dialog.kind === "limits" ? html`<${LimitsDialog} ...${dialog} onClose=${() => setDialog(null)} onDone=${found.reload} />` : null}
    ${dialog && dialog.kind === "switch" ? html`<${SwitchDialog} ...${dialog} onClose=${() => setDialog(null)} onDone=${found.reload} />` : null}`;
}

function saysSomething(config) {
  return config.limits.length > 0 || switchOf(config) !== null || settingsOf(config) !== "";
}

// Limits of entities are kept by resource, and so they are shown.
function OnResource({ known, resource }) {
  const all = resource && !known.includes(resource) ? [resource, ...known] : known;
  return html`<div class="filters"><${Field} label="On"><select class="input" value=${resource} onChange=${(event) => go("limits", { level: "entity", resource: event.target.value })}>
    <option value="">all resources at once</option>${all.map((one) => html`<option value=${one} key=${one}>${one}</option>`)}</select><//></div>`;
}

function Rows({ rows, level, chosen, me, open }) {
  const place = (row) => ({ level, entity: row.entity, resource: row.resource });
  const label = (row) => [row.entity, row.resource].filter(Boolean).join(" on ") || "the system";
  const who = {
    system: [{ title: "Level", kind: "who", cell: () => "System" }],
    resource: [{ title: "Resource", kind: "who", cell: (row) => html`<bdi class="name ${row.resource === chosen ? "chosen" : ""}">${row.resource}</bdi>` }],
    entity: [
      { title: "Entity", kind: "who", cell: (row) => html`<${EntityLink} entity=${row.entity} resource=${row.resource} />` },
      { title: "Resource", cell: (row) => (row.resource ? html`<bdi>${row.resource}</bdi>` : html`<span class="quiet">all</span>`) },
    ],
  }[level];
  const columns = [
    ...who,
    { title: "Limits", kind: "stretch", cell: (row) => html`<${LimitTexts} limits=${row.limits} />` },
    { title: "Switch", cell: (row) => (switchOf(row) ? html`<${Switched} by=${switchOf(row)} />` : null) },
    { title: "Settings", cell: (row) => (settingsOf(row) ? html`<span class="quiet">${settingsOf(row)}</span>` : null) },
  ];
  if (me.changes) {
    columns.push({
      title: "Change", isSilent: true, kind: "number",
      cell: (row) => html`<span class="buttons"><button class="button small" aria-label=${`Edit the limits of ${label(row)}`}
          onClick=${() => open({ kind: "limits", place: place(row), limits: row.limits })}>Edit</button>
        <button class="button small" aria-label=${`Switch of ${label(row)}`} onClick=${() => open({ kind: "switch", place: place(row), now: switchOf(row) })}>Switch</button></span>`,
    });
  }
  return html`<${Table} caption="Limits" columns=${columns} rows=${rows} keyOf=${(row) => `${row.entity}|${row.resource}`} />`;
}

function None({ level, known, me, open }) {
  const words = {
    system: ["The system has no limits", "zae-limiter system set-defaults -l rpm:60"],
    resource: ["No resource has limits", "zae-limiter resource set-defaults gpt-4 -l rpm:60"],
    entity: ["No entity has limits of its own here", "zae-limiter entity set-limits key-1 --resource gpt-4 -l rpm:60"],
  }[level];
  if (known.length) {
    return html`<${Empty} title="No entity has limits for all resources at once">Some have limits on ${known.slice(0, 12).map(
      (one, at) => html`${at ? ", " : ""}<a href=${href("limits", { level, resource: one })} key=${one}><bdi>${one}</bdi></a>`)}.<//>`;
  }
  return html`<${Empty} title=${words[0]}>${me.changes && level !== "entity" ? html`<button class="button primary" onClick=${open}>Set limits</button> or run ` : "Run "}<code>${words[1]}</code><//>`;
}
