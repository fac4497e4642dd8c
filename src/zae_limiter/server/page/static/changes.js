// What may be changed from the page, each as a dialog: limits, levels of a bucket, switches, parents.

import { html, useState } from "./vendor/htm-3.1.1/standalone.module.js";
import { ChangeDialog } from "./dialog.js";
import { amount } from "./format.js";
import { Field, Segments } from "./parts.js";

const MICRO = 1e6;

export function placeText({ level, entity, resource }) {
  if (level === "system") return "everybody";
  if (!entity) return `all of ${resource}`;
  return resource ? `${entity} on ${resource}` : `${entity} on all resources`;
}

export function auditOf({ entity, resource }) {
  if (entity) return { entity };
  return resource ? { resource } : { system: 1 };
}

const nameOf = (text) => text.split(":")[0].trim();

function changesOf(before, after) {
  const now = new Map(before.map((text) => [nameOf(text), text]));
  const then = new Map(after.map((text) => [nameOf(text), text]));
  return [...new Set([...now.keys(), ...then.keys()])].map((name) => [name, now.get(name) || "none", then.get(name) || "none"]);
}

// The limits of one level, as the command line writes them, one to a line.
export function LimitsDialog({ place, limits, onClose, onDone }) {
  const isFixed = Boolean(place.resource) || place.level !== "entity";
  const [resource, setResource] = useState(place.resource || "");
  const [lines, setLines] = useState(limits.length ? limits.map((limit) => limit.text) : [""]);
  const before = limits.map((limit) => limit.text);
  const after = lines.map((line) => line.trim()).filter(Boolean);
  const isSame = JSON.stringify(before) === JSON.stringify(after) && isFixed;
  const at = { ...place, resource: resource.trim() || null };
  const needsResource = place.level === "resource" && !at.resource;
  const body = isSame || needsResource || (!before.length && !after.length) ? null
    : { level: place.level, entity: place.entity || null, resource: at.resource, limits: after };
  const edit = (index, text) => setLines(lines.map((line, one) => (one === index ? text : line)));
  const submitText = after.length ? `Set ${after.length === 1 ? "1 limit" : `${after.length} limits`}` : "Delete these limits";
  return html`<${ChangeDialog} title=${`Limits of ${needsResource ? "a resource" : placeText(at)}`} verb="limits" body=${body} rows=${changesOf(before, after)}
      submitText=${submitText} isGrave=${!after.length} auditOf=${auditOf(at)} onClose=${onClose} onDone=${onDone}
      caution=${after.length ? "A raise gives the difference at once; a cut takes it, but never into debt." : "Without limits of its own, the next broader level decides."}>
    ${isFixed && place.resource ? null : place.level === "system" ? null : html`<${Field} label="Resource" hint=${place.level === "entity" ? "Empty: for all resources" : null}>
      <input class="input" value=${resource} onInput=${(event) => setResource(event.target.value)} autocomplete="off" spellcheck=${false} required=${place.level === "resource"} /><//>`}
    <fieldset class="lines"><legend class="label">Limits</legend>
      ${lines.map((line, index) => html`<div class="line" key=${index}>
        <input class="input code" value=${line} aria-label=${`Limit ${index + 1}`} placeholder="rpm:60/min" autocomplete="off" spellcheck=${false}
          autofocus=${index === 0} onInput=${(event) => edit(index, event.target.value)} />
        <button type="button" class="button small" onClick=${() => setLines(lines.filter((_, one) => one !== index))} aria-label=${`Remove limit ${index + 1}`}>Remove</button></div>`)}
      <button type="button" class="button small" onClick=${() => setLines([...lines, ""])}>Add a limit</button></fieldset>
    <p class="hint">NAME:AMOUNT/UNIT, such as <code>rpm:60/min</code>, <code>tpm:10k/min:20k</code> with a burst, <code>usd:99.50USD/month@Europe/Berlin</code>, <code>jobs:10/concurrent(5m)</code>. <code>:soft</code> at the end counts and refuses nobody.</p>
  <//>`;
}

function parsed(text, unit) {
  const clean = text.trim().replaceAll(/[_,\s]/g, "");
  if (!/^\d{1,16}(\.\d{1,6})?$/.test(clean)) return null;
  const value = unit ? Math.round(Number(clean) * MICRO) : Number(clean);
  return Number.isSafeInteger(value) && value > 0 ? value : null;
}

// Tokens for one bucket: some more, full, or no debt.
export function BucketDialog({ verb, bucket, onClose, onDone }) {
  const levels = bucket.levels.filter((level) => level.held === null || level.held === undefined);
  const [texts, setTexts] = useState({});
  const [chosen, setChosen] = useState(levels.map((level) => level.limit.name));
  const { entity, resource } = bucket;
  const what = { "top-up": "Top up", reset: "Reset", forgive: "Forgive the debt of" }[verb];
  const amounts = {};
  for (const level of levels) {
    const value = parsed(texts[level.limit.name] || "", level.limit.unit);
    if (value !== null) amounts[level.limit.name] = value;
  }
  const isTopUp = verb === "top-up";
  const isWrong = Object.values(texts).some((text) => text.trim()) && Object.keys(amounts).length !== Object.values(texts).filter((text) => text.trim()).length;
  const rows = levels.map((level) => {
    const { name, unit } = level.limit;
    const then = isTopUp ? Math.max(level.available, Math.min(level.capacity, level.available + (amounts[name] || 0)))
      : !chosen.includes(name) ? level.available
      : verb === "reset" ? level.capacity : Math.max(0, level.available);
    return [name, amount(Math.floor(level.available), unit), amount(Math.floor(then), unit)];
  });
  const names = levels.map((level) => level.limit.name);
  const body = isTopUp
    ? Object.keys(amounts).length && !isWrong ? { entity, resource, amounts } : null
    : chosen.length ? { entity, resource, ...(chosen.length === names.length ? {} : { limits: chosen }) } : null;
  const toggle = (name) => setChosen(chosen.includes(name) ? chosen.filter((one) => one !== name) : [...chosen, name]);
  return html`<${ChangeDialog} title=${`${what} ${entity} on ${resource}`} verb=${verb} body=${body} rows=${rows} isKeyed
      submitText=${isTopUp ? "Top up" : verb === "reset" ? "Fill the bucket" : "Forgive the debt"} auditOf=${{ entity }} onClose=${onClose} onDone=${onDone}
      caution=${isTopUp ? "A bucket never holds more than its capacity; what has no room is not given."
        : "It is a gift: what was consumed stays in the usage. Whoever waits keeps its turn."}>
    ${isTopUp
      ? html`<div class="fields">${levels.map((level, index) => html`<${Field} key=${level.limit.name}
          label=${html`<bdi>${level.limit.name}</bdi>${level.limit.unit ? ` in ${level.limit.unit.replace("_micro", "").toUpperCase()}` : ""}`}>
          <input class="input numbers" inputmode="decimal" autofocus=${index === 0} value=${texts[level.limit.name] || ""} autocomplete="off"
            onInput=${(event) => setTexts({ ...texts, [level.limit.name]: event.target.value })} /><//>`)}</div>
          ${isWrong ? html`<p class="hint bad-text">Use whole numbers${levels.some((level) => level.limit.unit) ? ", or money with decimals," : ""} above zero.</p>` : null}`
      : html`<fieldset class="checks"><legend class="label">Limits</legend>${names.map((name) => html`<label key=${name}>
          <input type="checkbox" checked=${chosen.includes(name)} onChange=${() => toggle(name)} /> <bdi>${name}</bdi></label>`)}</fieldset>`}
  <//>`;
}

const STATES = [["on", "By its limits"], ["off", "Off"], ["bypass", "Past its limits"]];

export function switchText(by) {
  if (!by) return "as the broader level says";
  const words = { off: "off", bypass: by.counted === false ? "past its limits, not counted" : "past its limits", on: "on, whatever the broader level says" };
  return `${words[by.state] || by.state}${by.reason ? `: ${by.reason}` : ""}`;
}

export function SwitchDialog({ place, now, onClose, onDone }) {
  const [state, setState] = useState(now && now.state === "off" ? "on" : "off");
  const [reason, setReason] = useState("");
  const [counted, setCounted] = useState(true);
  const where = place.entity || place.resource ? { entity: place.entity || null, resource: place.resource || null } : { level: "system" };
  const body = state === "off" && !reason.trim() ? null : {
    ...where, state,
    ...(state === "off" && reason.trim() ? { reason: reason.trim() } : {}),
    ...(state === "bypass" ? { counted } : {}),
  };
  const then = state === "on" ? null : { state, reason: state === "off" ? reason.trim() : "", counted };
  const titles = { on: "Remove the switch", off: "Switch off", bypass: "Let past the limits" };
  const hints = {
    on: "The switch of this level goes; broader levels decide.",
    off: "Every acquire is refused with the reason, at once. Nothing is taken.",
    bypass: "Every acquire is admitted, whatever the limits say.",
  };
  return html`<${ChangeDialog} title=${`Switch of ${placeText(place)}`} verb="switch" body=${body} rows=${[["switch", switchText(now), switchText(then)]]}
      submitText=${titles[state]} isGrave=${state === "off"} auditOf=${auditOf(place)} onClose=${onClose} onDone=${onDone} caution=${hints[state]}>
    <${Segments} label="State" value=${state} options=${STATES} onChoose=${setState} />
    ${state === "off" ? html`<${Field} label="Reason" hint="Whoever is refused reads it."><input class="input" required autofocus maxlength="200" value=${reason} autocomplete="off" onInput=${(event) => setReason(event.target.value)} /><//>` : null}
    ${state === "bypass" ? html`<label class="check"><input type="checkbox" checked=${counted} onChange=${() => setCounted(!counted)} /> Charge it all the same, into debt if need be</label>` : null}
  <//>`;
}

export function ParentDialog({ entity, parent, onClose, onDone }) {
  const [text, setText] = useState(parent || "");
  const then = text.trim() || null;
  return html`<${ChangeDialog} title=${`Parent of ${entity}`} verb="parent" isKeyed body=${then === (parent || null) ? null : { entity, parent: then }}
      rows=${[["parent", parent || "none", then || "none"]]} submitText=${then ? "Move it" : "Leave it without a parent"} auditOf=${{ entity }}
      onClose=${onClose} onDone=${onDone} caution="Other processes charge the new parent from their next acquire on.">
    <${Field} label="Parent" hint="Empty: none. The parent must have been created.">
      <input class="input" value=${text} autofocus autocomplete="off" spellcheck=${false} onInput=${(event) => setText(event.target.value)} /><//>
  <//>`;
}
