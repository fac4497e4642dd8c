// The family of an entity as a tree: those above it, itself, those below it, leafed through.

import { html, useState } from "./vendor/htm-3.1.1/standalone.module.js";
import { view } from "./data.js";
import { EntityLink, ProblemNote } from "./parts.js";

export function Family({ data }) {
  const [more, setMore] = useState({ of: data, rows: [], next: data.children.next, problem: null });
  const now = more.of === data ? more : { of: data, rows: [], next: data.children.next, problem: null };
  const children = [...data.children.rows, ...now.rows];
  const above = data.chain.slice(1).reverse();
  const load = async () => {
    try {
      const found = await view("children", { entity: data.entity, cursor: now.next });
      setMore({ of: data, rows: [...now.rows, ...found.rows], next: found.next, problem: null });
    } catch (problem) {
      setMore({ ...now, problem });
    }
  };
  const self = html`<span class="self" aria-current="true"><bdi>${data.entity}</bdi></span>
    ${data.parent ? html`<span class="quiet"> ${data.cascade ? "charges its parent too" : "charged alone"}</span>` : null}`;
  const below = children.length
    ? html`<ul>${children.map((child) => html`<li key=${child.entity}><${EntityLink} entity=${child.entity} name=${child.name !== child.entity ? child.name : null} /></li>`)}
        ${now.next ? html`<li><button class="button small" onClick=${load}>More children</button></li>` : null}</ul>`
    : null;
  const own = html`<ul><li>${self}${below}</li></ul>`;
  const tree = above.reduceRight((inner, id) => html`<ul><li><${EntityLink} entity=${id} />${inner}</li></ul>`, own);
  return html`<div class="tree">${tree}</div>
    <${ProblemNote} problem=${now.problem} retry=${load} />
    ${above.length || children.length ? null : html`<p class="quiet pad">No parent, no children.</p>`}`;
}
