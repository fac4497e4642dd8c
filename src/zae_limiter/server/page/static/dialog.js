// A change from the first look to the audit event that it made: a form, what is now beside what will be, one
// button that says exactly what it does, an error in words. What is sent twice by accident counts once.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-3.1.1/standalone.module.js";
import { change, newKey, view } from "./data.js";
import { dateTime } from "./format.js";
import { Icon, ProblemNote, State } from "./parts.js";

export function Dialog({ title, onClose, children }) {
  const dialog = useRef(null);
  useLayoutEffect(() => {
    const opener = document.activeElement;
    const node = dialog.current;
    node.showModal();
    return () => {
      node.close(); // while it is open nothing else can have the focus
      if (opener && opener.isConnected) opener.focus();
    };
  }, []);
  const onBackdrop = (event) => {
    if (event.target === dialog.current) onClose();
  };
  return html`<dialog ref=${dialog} class="dialog" aria-labelledby="dialog-title" onMouseDown=${onBackdrop}
      onCancel=${(event) => { event.preventDefault(); onClose(); }}>
    <div class="dialog-inside"><header class="dialog-head"><h2 id="dialog-title">${title}</h2>
      <button class="button icon-only" onClick=${onClose} aria-label="Close"><${Icon} name="close" /></button></header>
    ${children}</div></dialog>`;
}

// `body` is what is sent, or null while the form is not complete; `rows` tell each thing before and after.
export function ChangeDialog({ title, verb, body, rows, isKeyed, submitText, isGrave, auditOf, onClose, onDone, children, caution }) {
  const [state, setState] = useState({ step: "ask", problem: null, told: null });
  const intent = useRef({ body: "", key: "" });
  const submit = async (event) => {
    event.preventDefault();
    if (!body || state.step === "sending") return;
    const text = JSON.stringify([verb, body]);
    if (intent.current.body !== text) intent.current = { body: text, key: newKey() };
    setState({ step: "sending", problem: null, told: null });
    try {
      const told = await change(verb, isKeyed ? { ...body, key: intent.current.key } : body);
      setState({ step: "done", problem: null, told });
      if (onDone) onDone(told);
    } catch (problem) {
      setState({ step: "ask", problem, told: null });
    }
  };
  if (state.step === "done") {
    return html`<${Dialog} title=${title} onClose=${onClose}><${Done} told=${state.told} auditOf=${auditOf} onClose=${onClose} /><//>`;
  }
  return html`<${Dialog} title=${title} onClose=${onClose}><form class="dialog-form" onSubmit=${submit}>
    ${children}
    <${BeforeAfter} rows=${rows} />
    ${caution ? html`<p class="hint">${caution}</p>` : null}
    <${ProblemNote} problem=${state.problem} />
    <footer class="dialog-foot"><button type="button" class="button" onClick=${onClose}>Cancel</button>
      <button type="submit" class="button primary ${isGrave ? "grave" : ""}" disabled=${!body || state.step === "sending"}>${
        state.step === "sending" ? "Sending…" : submitText}</button></footer></form><//>`;
}

export function BeforeAfter({ rows }) {
  if (!rows || !rows.length) return null;
  return html`<table class="before-after"><caption class="hidden-text">What changes</caption>
    <thead><tr><th scope="col">What</th><th scope="col">Now</th><th scope="col">Then</th></tr></thead>
    <tbody>${rows.map(([what, now, then]) => html`<tr key=${what} class=${now === then ? "same" : "changed"}>
      <th scope="row"><bdi>${what}</bdi></th><td class="numbers"><bdi>${now}</bdi></td>
      <td class="numbers">${now === then ? html`<span class="quiet">as it is</span>` : html`<bdi>${then}</bdi>`}</td></tr>`)}</tbody></table>`;
}

// That it is done, and what the audit trail says of it.
function Done({ told, auditOf, onClose }) {
  const [event, setEvent] = useState(undefined);
  const button = useRef(null);
  useEffect(() => {
    button.current.focus();
    view("audit", { ...auditOf, size: 1 })
      .then((found) => setEvent(found.rows[0] || null))
      .catch(() => setEvent(null));
  }, []);
  const over = told && told.again ? "It had been done before by the same request, and was not done twice." : null;
  return html`<div class="done" role="status"><p><${State} kind="good">Done<//></p>
    ${over ? html`<p>${over}</p>` : null}
    ${event ? html`<dl class="facts"><dt>Audit trail</dt><dd><bdi>${event.action_text || event.action}</bdi></dd>
        <dt>At</dt><dd class="numbers">${dateTime(event.at_ms)}</dd><dt>By</dt><dd><bdi>${event.principal || "–"}</bdi></dd>
        <dt>Event</dt><dd class="numbers"><bdi>${event.id}</bdi></dd></dl>`
      : html`<p class="quiet">${event === null ? "No event was made: nothing changed." : "Looking for the event it made…"}</p>`}</div>
    <footer class="dialog-foot"><button ref=${button} class="button primary" onClick=${onClose}>Close</button></footer>`;
}
