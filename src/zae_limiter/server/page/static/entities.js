// All entities: found by the beginning of their ids, and leafed through.

import { html, useEffect, useState } from "./vendor/htm-3.1.1/standalone.module.js";
import { useView } from "./data.js";
import { Empty, EntityLink, go, PageHead, Pager, Shown, Switched, Table, usePages } from "./parts.js";

const SIZE = 100;
const PAUSE_MS = 200;

export function Entities({ params }) {
  const q = params.get("q") || "";
  const [typed, setTyped] = useState(q);
  useEffect(() => setTyped(q), [q]);
  useEffect(() => {
    if (typed === q) return undefined;
    const timer = setTimeout(() => go("entities", { q: typed }), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [typed]);
  const pages = usePages(q);
  const found = useView("entities", { q, cursor: pages.cursor, size: SIZE });
  const columns = [
    { title: "Entity", kind: "who", cell: (row) => html`<${EntityLink} entity=${row.entity} name=${row.name !== row.entity ? row.name : null} />` },
    { title: "Parent", cell: (row) => (row.parent ? html`<${EntityLink} entity=${row.parent} />` : null) },
    { title: "Charged to the parent too", cell: (row) => (row.parent ? (row.cascade ? "yes" : html`<span class="quiet">no</span>`) : null) },
    { title: "Switch", cell: (row) => (row.switch ? html`<${Switched} by=${row.switch} />` : null) },
  ];
  return html`<${PageHead} title="Entities">
      <label class="search-inline"><span class="hidden-text">Beginning of the id</span>
        <input type="search" class="input" value=${typed} placeholder="Beginning of the id" autocomplete="off" spellcheck=${false}
          onInput=${(event) => setTyped(event.target.value)} /></label><//>
    <section class="card" aria-label="Entities found">
      <${Shown} of=${found} lines=${12}>${(data) => data.rows.length
        ? html`<${Table} caption="Entities" columns=${columns} rows=${data.rows} keyOf=${(row) => row.entity} />
            <footer class="card-foot"><${Pager} first=${pages.first} count=${data.rows.length} next=${data.next}
              hasBack=${pages.hasBack} onBack=${pages.onBack} onNext=${() => pages.onward(data.next, data.rows.length)} /></footer>`
        : html`<${None} q=${q} />`}<//></section>`;
}

function None({ q }) {
  if (q) {
    return html`<${Empty} title="No entity begins like this">Ids are compared from their beginning, letter by letter.
      An entity that was never created can have a bucket all the same: <a href=${`#/entity?entity=${encodeURIComponent(q)}`}>look at <bdi>${q}</bdi></a>.<//>`;
  }
  return html`<${Empty} title="There are no entities yet">Whoever acquires is limited without being created. Create those that have
    a name or a parent: <code>zae-limiter entity create key-1 --parent team-1 --cascade</code><//>`;
}
