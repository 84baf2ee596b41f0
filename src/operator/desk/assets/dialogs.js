// The questions before anything is changed.

import { call } from "./api.js";

const at = (id) => document.getElementById(id);

let run = null;
let isSending = false;

/** Sets the lines of a description list, as text. */
export function describe(list, lines) {
  list.replaceChildren(...lines.flatMap(([name, value]) => {
    const [term, description] = [document.createElement("dt"), document.createElement("dd")];
    term.textContent = name;
    description.textContent = value;
    return [term, description];
  }));
}

function field({ id, label, value = "", options, hint, isRequired }) {
  const wrapper = document.createElement("label");
  wrapper.textContent = label;
  const input = document.createElement("input");
  Object.assign(input, { id: `field-${id}`, name: id, value, required: Boolean(isRequired), autocomplete: "off", maxLength: 500 });
  wrapper.append(input);
  if (options) {
    const list = document.createElement("datalist");
    list.id = `options-${id}`;
    list.append(...options.map((option) => Object.assign(document.createElement("option"), { value: option })));
    input.setAttribute("list", list.id);
    wrapper.append(list);
  }
  if (hint) {
    const small = document.createElement("small");
    small.textContent = hint;
    wrapper.append(small);
  }
  return wrapper;
}

/** Asks, and sends what `send` makes of the fields. `done` gets the answer. */
export function ask({ title, text, facts, fields, confirm, isDangerous, send, done }) {
  at("dialog-title").textContent = title;
  at("dialog-text").textContent = text;
  describe(at("dialog-facts"), facts);
  at("dialog-fields").replaceChildren(...fields.map(field));
  at("dialog-confirm").textContent = confirm;
  at("dialog-confirm").classList.toggle("dangerous", Boolean(isDangerous));
  at("dialog-fault").hidden = true;
  run = { send, done };
  isSending = false;
  if (!at("dialog").open) at("dialog").showModal();
  (at("dialog-fields").querySelector("input") ?? at("dialog-confirm")).focus();
}

async function confirmed() {
  if (isSending) return;
  isSending = true;
  at("dialog-confirm").disabled = true;
  const given = Object.fromEntries([...new FormData(at("dialog-form"))].map(([name, value]) => [name, value.trim()]));
  const { send, done } = run;
  try {
    const [method, path, body] = send(given);
    const answer = await call(method, path, body);
    at("dialog").close();
    done(answer);
  } catch (error) {
    at("dialog-fault").textContent = error.message;
    at("dialog-fault").hidden = false;
  } finally {
    isSending = false;
    at("dialog-confirm").disabled = false;
  }
}

at("dialog-form").addEventListener("submit", (event) => {
  event.preventDefault();
  confirmed();
});
at("dialog-cancel").addEventListener("click", () => at("dialog").close());
at("help-button").addEventListener("click", () => at("help").showModal());
at("help-close").addEventListener("click", () => at("help").close());

/** Shows the keys. */
export function help() {
  at("help").showModal();
}

/** Returns whether a dialog is open. */
export function isAsking() {
  return at("dialog").open || at("help").open;
}
