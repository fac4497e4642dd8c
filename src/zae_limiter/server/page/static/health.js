// Whether everything works: the store, the server, and the processes that were heard of.

import { html } from "./vendor/htm-3.1.1/standalone.module.js";
import { useView } from "./data.js";
import { amount, duration, storeText } from "./format.js";
import { Ago, Card, Empty, PageHead, Shown, State, Table } from "./parts.js";

const KINDS = { green: ["good", "well"], yellow: ["near", "look at it"], red: ["bad", "broken"],
  off: ["off", "not there"], unknown: ["off", "not known"] };

export function Health({ me }) {
  const found = useView("health", {}, { everyMs: 10_000 });
  const state = (health) => {
    const [kind, word] = KINDS[health] || ["near", health];
    return html`<${State} kind=${kind}>${word}<//>`;
  };
  const checks = [
    { title: "Part", kind: "who", cell: (row) => row.part },
    { title: "State", cell: (row) => state(row.health) },
    { title: "Says", kind: "stretch", cell: (row) => html`<bdi>${row.detail}</bdi>` },
  ];
  const processes = [
    { title: "Process", kind: "who", cell: (row) => html`<bdi>${row.name}</bdi>` },
    { title: "Heard of", cell: (row) => html`<${Ago} at=${row.seen_ms} />` },
    { title: "Admitted", kind: "number", cell: (row) => amount(row.admitted) },
    { title: "Refused", kind: "number", cell: (row) => amount(row.refused) },
  ];
  return html`<${PageHead} title="Health"><//>
    <${Shown} of=${found} lines=${6}>${(data) => html`
      <dl class="summary">
        <div class="figure"><dt>All in all</dt><dd class="big-state">${state(data.health)}</dd></div>
        <div class="figure"><dt>The store answers in</dt><dd><span class="big numbers">${duration(data.latency_ms)}</span></dd></div>
        <div class="figure"><dt>Store</dt><dd><span class="big-text unbroken"><bdi>${storeText(me.store_kind)}</bdi></span> <span class="quiet cut"><bdi>${me.store}</bdi></span></dd></div>
        <div class="figure"><dt>Version</dt><dd><span class="big-text numbers">${me.version}</span> <span class="quiet">namespace <bdi>${me.namespace}</bdi></span></dd></div>
      </dl>
      <${Card} title="Checks"><${Table} caption="Checks" columns=${checks} rows=${data.checks} keyOf=${(row) => row.part} /><//>
      <${Card} title="Processes">${data.processes.length
        ? html`<${Table} caption="Processes that report" columns=${processes} rows=${data.processes} keyOf=${(row) => `${row.name}|${row.started_ms}`} />`
        : html`<${Empty} title="No process has reported">Programs tell what they admitted and whom they refused once they call <code>Telemetry(limiter).share()</code>. Levels, limits and usage are known without.<//>`}<//>`}<//>`;
}
