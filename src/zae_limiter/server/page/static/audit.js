// Who changed what: the audit trail of an entity, of a resource, or of the system.

import { html, useEffect, useState } from "./vendor/htm-3.1.1/standalone.module.js";
import { useView } from "./data.js";
import { dateTime } from "./format.js";
import { Ago, Empty, EntityLink, Field, go, PageHead, Pager, Segments, Shown, Table, usePages } from "./parts.js";

const OF = [["system", "System"], ["resource", "A resource"], ["entity", "An entity"]];

export function Audit({ params }) {
  const given = { entity: params.get("entity") || "", resource: params.get("resource") || "" };
  const kind = given.entity ? "entity" : given.resource ? "resource" : params.get("of") || "system";
  const [typed, setTyped] = useState(given.entity || given.resource);
  useEffect(() => setTyped(given.entity || given.resource), [given.entity, given.resource]);
  const of = kind === "system" ? { system: 1 } : given[kind] ? { [kind]: given[kind] } : null;
  const submit = (event) => {
    event.preventDefault();
    go("audit", { [kind]: typed.trim() });
  };
  return html`<${PageHead} title="Audit">
      <${Segments} label="Trail of" value=${kind} options=${OF} onChoose=${(chosen) => go("audit", { of: chosen })} /><//>
    ${kind === "system" ? null : html`<form class="filters" onSubmit=${submit}>
      <${Field} label=${kind === "entity" ? "Entity" : "Resource"}><input class="input" value=${typed} autocomplete="off" spellcheck=${false}
        onInput=${(event) => setTyped(event.target.value)} /><//><button class="button">Show</button></form>`}
    <section class="card" aria-label="Events">${of
      ? html`<${AuditRows} of=${of} size=${50} />`
      : html`<${Empty} title=${kind === "entity" ? "Which entity?" : "Which resource?"}>Each entity and each resource has a trail of its own. Write its name above.<//>`}</section>`;
}

const NONE = "Changes of limits, switches, families and balances are written down here, with who made them.";

export function AuditRows({ of, size, turn = 0, isShort = false }) {
  const pages = usePages(JSON.stringify(of));
  const found = useView("audit", { ...of, cursor: pages.cursor, size }, { after: turn });
  const columns = [
    { title: "When", kind: "when", cell: (row) => (row.at_ms === null ? "–" : isShort ? html`<${Ago} at=${row.at_ms} />` : html`<time class="numbers" datetime=${new Date(row.at_ms).toISOString()}>${dateTime(row.at_ms)}</time>`) },
    { title: "What", kind: "who", cell: (row) => html`<bdi>${row.action_text || row.action}</bdi>` },
    { title: "Who", cell: (row) => (row.principal ? html`<bdi>${row.principal}</bdi>` : html`<span class="quiet">–</span>`) },
    ...(isShort ? [] : [
      { title: "Of", cell: (row) => html`${row.entity ? html`<${EntityLink} entity=${row.entity} /> ` : null}${row.resource ? html`<span class=${row.entity ? "quiet on" : ""}><bdi>${row.resource}</bdi></span>` : null}` },
      { title: "Details", kind: "stretch", cell: (row) => html`<${Details} row=${row} />` },
    ]),
  ];
  return html`<${Shown} of=${found} lines=${isShort ? 3 : 10}>${(data) => data.rows.length
    ? html`<${Table} caption="Audit events" columns=${columns} rows=${data.rows} keyOf=${(row) => row.id} />
        ${isShort ? null : html`<footer class="card-foot"><${Pager} first=${pages.first} count=${data.rows.length} next=${data.next}
          hasBack=${pages.hasBack} onBack=${pages.onBack} onNext=${() => pages.onward(data.next, data.rows.length)} /></footer>`}`
    : isShort ? html`<p class="quiet pad">Nothing was changed yet.</p>` : html`<${Empty} title="Nothing was changed yet">${NONE}<//>`}<//>`;
}

// Details in a line: of a list the names of what is in it.
function inShort(value) {
  if (Array.isArray(value)) return value.map((one) => inShort(one?.name ?? one)).join(", ");
  return typeof value === "string" ? value : JSON.stringify(value);
}

function Details({ row }) {
  const told = Object.entries(row.details ?? {}).filter(([, value]) => value !== null);
  if (!told.length) return html`<span class="quiet">–</span>`;
  return html`<details><summary class="cut"><bdi>${told.map(([name, value]) => `${name}: ${inShort(value)}`).join(" · ")}</bdi></summary><pre class="code-block">${JSON.stringify(row.details, null, 2)}</pre></details>`;
}
