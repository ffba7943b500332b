// Sorting, filtering, the theme, and live updates. Without it every page is complete, only still.
"use strict";

const root = document.documentElement;
const remembered = {
  get() { try { return localStorage.getItem("theme"); } catch { return null; } },
  set(value) { try { localStorage.setItem("theme", value); } catch { /* a page from a file may not store */ } },
};

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function setUpTheme() {
  const stored = remembered.get();
  if (stored === "dark" || stored === "light") root.dataset.theme = stored;
  const button = document.querySelector(".theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remembered.set(root.dataset.theme);
  });
}

function keyOf(row, column, kind) {
  const cell = row.cells[column];
  if (kind === "number") return Number(cell.dataset.value ?? cell.textContent);
  return cell.querySelector("time")?.dateTime ?? cell.textContent.trim();
}

function sortBy(table, column, direction) {
  const head = table.tHead.rows[0].cells[column];
  const kind = head.dataset.sort;
  const compare = kind === "number" ? (a, b) => a - b : new Intl.Collator("en", { numeric: true }).compare;
  const rows = [...table.tBodies[0].rows].map((row) => [keyOf(row, column, kind), row]);
  rows.sort((a, b) => (direction === "ascending" ? 1 : -1) * compare(a[0], b[0]));
  table.tBodies[0].append(...rows.map(([, row]) => row));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", direction);
}

function setUpSorting(table) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    if (!head.dataset.sort) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      // Numbers are wanted with the largest first, but ranks with the smallest.
      const first = head.dataset.sort === "number" && button.textContent !== "Rank" ? "descending" : "ascending";
      const now = head.getAttribute("aria-sort");
      sortBy(table, column, now === null ? first : now === "ascending" ? "descending" : "ascending");
    });
  });
}

function setUpFilters(box) {
  const table = box.nextElementSibling.querySelector("table");
  const [search, select, count] = [box.querySelector("input"), box.querySelector("select"), box.querySelector(".count")];
  const apply = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      const status = row.querySelector("[data-status]")?.dataset.status;
      row.hidden = !words.every((word) => text.includes(word)) || Boolean(select?.value && select.value !== status);
      shown += row.hidden ? 0 : 1;
    }
    const all = table.tBodies[0].rows.length;
    count.textContent = shown === all ? "" : `${shown} of ${all} shown`;
  };
  box.hidden = table.tBodies[0].rows.length < 4;
  search.addEventListener("input", apply);
  select?.addEventListener("change", apply);
  return apply;
}

let applyFilters = [];

function setUpTables() {
  document.querySelectorAll("table.data").forEach(setUpSorting);
  applyFilters = [...document.querySelectorAll(".filters")].map(setUpFilters);
}

// What a reader has sorted and typed is kept when the content is replaced.
function viewState() {
  const sorted = [...document.querySelectorAll("table.data")].map((table) => {
    const column = [...table.tHead.rows[0].cells].findIndex((head) => head.hasAttribute("aria-sort"));
    return { id: table.id, column, direction: table.tHead.rows[0].cells[column]?.getAttribute("aria-sort") };
  });
  const typed = [...document.querySelectorAll(".filters input, .filters select")].map((field) => field.value);
  const focus = [...document.querySelectorAll("main input, main select, main button, main a")].indexOf(document.activeElement);
  return { sorted, typed, focus };
}

function restore({ sorted, typed, focus }) {
  for (const { id, column, direction } of sorted) {
    const table = document.getElementById(id);
    if (table && direction) sortBy(table, column, direction);
  }
  document.querySelectorAll(".filters input, .filters select").forEach((field, k) => { field.value = typed[k] ?? ""; });
  applyFilters.forEach((apply) => apply());
  if (focus >= 0) document.querySelectorAll("main input, main select, main button, main a")[focus]?.focus({ preventScroll: true });
}

async function replaceContent() {
  const answer = await fetch(location.href);
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const state = viewState();
  document.querySelector("main").replaceChildren(...fresh.querySelector("main").childNodes);
  setUpTables();
  restore(state);
}

function follow(address) {
  const events = new EventSource(address);
  const label = document.querySelector(".live");
  let known = null;
  let running = Promise.resolve();
  events.onmessage = ({ data }) => {
    label.textContent = "live";
    if (known !== null && known !== data) running = running.then(replaceContent).catch(() => {});
    known = data;
  };
  events.onerror = () => { label.textContent = "connection lost, trying again"; };
}

setUpTheme();
setUpTables();
if (document.body.dataset.live) follow(document.body.dataset.live);
