"use strict";
(() => {
  const all = (what, root = document) => [...root.querySelectorAll(what)];
  const numbers = (element, key) => (element.dataset[key] || "").split(" ").filter(Boolean);
  const LINE = "pre span, tbody tr";

  // What has a number, by kind (s: lines of the source, n: ops, m: statements) and number.
  const index = { s: new Map(), n: new Map(), m: new Map() };
  for (const element of all(LINE))
    for (const key of ["s", "n", "m"])
      for (const number of numbers(element, key)) {
        if (!index[key].has(number)) index[key].set(number, []);
        index[key].get(number).push(element);
      }
  const having = (key, number) => index[key].get(number) || [];

  const panes = all(".pane");
  const tables = all("table");
  let graph = "0";
  let row = null;
  let pinned = null;
  let cursor = null;

  const shown = (element) => !element.closest("[hidden]");
  const paneOf = (element) => element.closest(".pane")?.dataset.pane;

  // ---------------------------------------------------------------- highlighting

  // Numbers that belong to `from`: towards the source from any line, towards the code from a line of the source or an op.
  function family(from) {
    const found = { s: new Set(numbers(from, "s")), n: new Set(numbers(from, "n")), m: new Set(numbers(from, "m")) };
    const pane = paneOf(from);
    const add = (key, element) => numbers(element, key).forEach((number) => found[key].add(number));
    if (pane === "0")
      for (const s of found.s) having("s", s).forEach((e) => paneOf(e) === "1" && add("n", e));
    for (const m of [...found.m]) having("m", m).filter(shown).forEach((e) => add("n", e));
    for (const n of found.n) having("n", n).forEach((e) => paneOf(e) === "1" && add("s", e));
    if (pane === "0" || pane === "1")
      for (const n of found.n) having("n", n).filter(shown).forEach((e) => paneOf(e) && add("m", e));
    if (pane === "2")
      for (const m of found.m) having("m", m).filter(shown).forEach((e) => add("m", e));
    return found;
  }

  function clear() {
    all(".strong, .weak").forEach((element) => element.classList.remove("strong", "weak"));
  }

  function show(from) {
    clear();
    if (!from) return;
    const found = family(from);
    const whole = from.tagName === "TR";
    const mark = (name, element) => shown(element) && element.classList.add(name);
    // A line of code whose op is not known belongs to some op of its kernel: those are marked weakly.
    if (!whole && !found.n.size && row)
      for (const n of numbers(row, "n")) {
        having("n", n).filter((e) => paneOf(e) === "1").forEach((e) => {
          mark("weak", e);
          numbers(e, "s").forEach((s) => having("s", s).forEach((line) => mark("weak", line)));
        });
      }
    for (const key of ["s", "n", "m"])
      for (const number of found[key])
        having(key, number).forEach((e) => {
          // The op of a line in the source pane that only shares that line is not meant.
          if (key === "s" && paneOf(e) !== "0") return;
          // Of a step, all of its code is meant, and which line is which op's says the op.
          if (whole && paneOf(e) > "1") return;
          mark(e.tagName === "TR" && e !== from ? "weak" : "strong", e);
        });
    from.classList.add("strong");
  }

  function reveal(from) {
    for (const pane of panes) {
      const found = pane.contains(from) ? [from] : [...all(".strong", pane), ...all(".weak", pane)];
      const first = found.find(shown);
      if (first) scrollTo(pane.querySelector(".scroll"), first);
    }
  }

  function scrollTo(box, element) {
    const top = element.getBoundingClientRect().top - box.getBoundingClientRect().top;
    if (top < 0 || top > box.clientHeight - 20) box.scrollTop += top - box.clientHeight / 3;
  }

  // ---------------------------------------------------------------- what is shown

  function select(next) {
    if (!next) return;
    row = next;
    graph = row.dataset.row.split(".")[0];
    for (const table of tables) table.hidden = table.dataset.graph !== graph;
    for (const button of all("button[data-graph]")) button.setAttribute("aria-pressed", button.dataset.graph === graph);
    for (const pre of all("pre[data-graph]")) pre.hidden = pre.dataset.graph !== graph;
    for (const pre of all("pre[data-row]")) pre.hidden = pre.dataset.row !== row.dataset.row;
    for (const pre of all("pre[data-code]")) pre.hidden = pre.dataset.code !== row.dataset.code;
    for (const each of all("tbody tr")) {
      each.setAttribute("aria-selected", each === row);
      each.tabIndex = each === row ? 0 : -1;
    }
    cursor = null;
    all(".cursor").forEach((element) => element.classList.remove("cursor"));
    history.replaceState(null, "", "#" + row.dataset.row);
  }

  function choose(element) {
    if (element.tagName === "TR") {
      select(element);
    } else if (paneOf(element) < "2") {
      // An op, or a line of the source: show the first step that has it, unless the one that is shown does.
      const nodes = [...family(element).n];
      const rows = nodes.flatMap((n) => having("n", n)).filter((e) => e.tagName === "TR");
      const here = rows.filter((e) => e.dataset.row.split(".")[0] === graph);
      if (rows.length && !rows.includes(row)) select(here[0] || rows[0]);
    }
    pinned = element;
    show(element);
    reveal(element);
  }

  function openGraph(number) {
    const table = tables.find((each) => each.dataset.graph === String(number));
    if (!table) return;
    pinned = null;
    clear();
    const first = table.querySelector("tbody tr.kernel") || table.querySelector("tbody tr");
    if (first) select(first);
    else {
      graph = String(number);
      for (const each of tables) each.hidden = each !== table;
      for (const pre of all("pre[data-graph]")) pre.hidden = pre.dataset.graph !== graph;
    }
  }

  function toggle(number) {
    const pane = panes[number];
    if (!pane) return;
    pane.hidden = !pane.hidden;
    document.querySelector(`button[data-pane="${number}"]`).setAttribute("aria-pressed", !pane.hidden);
  }

  // ---------------------------------------------------------------- pointer

  document.addEventListener("mouseover", (event) => {
    const element = event.target.closest?.(LINE);
    if (element) show(element);
    else if (pinned) show(pinned);
    else clear();
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button?.dataset.graph) return openGraph(button.dataset.graph);
    if (button?.dataset.pane) return toggle(Number(button.dataset.pane));
    const element = event.target.closest(LINE);
    if (element && !String(getSelection())) choose(element);
  });

  // ---------------------------------------------------------------- keys

  const lines = (pane) => all("pre span", pane).filter(shown);

  function move(element) {
    all(".cursor").forEach((each) => each.classList.remove("cursor"));
    if (!element) return;
    cursor = element;
    cursor.classList.add("cursor");
    const box = cursor.closest(".scroll");
    box.focus({ preventScroll: true });
    scrollTo(box, cursor);
    show(cursor);
  }

  function inPane(pane, key) {
    const own = lines(pane);
    const at = own.indexOf(cursor);
    if (key === "ArrowDown") return move(own[Math.min(at + 1, own.length - 1)]);
    if (key === "ArrowUp") return at <= 0 ? row.focus() : move(own[at - 1]);
    const open = panes.filter((each) => !each.hidden && lines(each).length);
    const next = open[open.indexOf(pane) + (key === "ArrowRight" ? 1 : -1)];
    if (next) move(next.querySelector(".strong:not([hidden])") && lines(next).find((e) => e.classList.contains("strong")) || lines(next)[0]);
  }

  function inTable(element, key) {
    const rows = all("tbody tr", element.closest("table"));
    const next = rows[rows.indexOf(element) + (key === "ArrowDown" ? 1 : -1)];
    if (key === "ArrowDown" || key === "ArrowUp") {
      if (!next) return;
      choose(next);
      next.focus();
    } else {
      const open = panes.find((each) => !each.hidden && lines(each).length);
      if (open) move(lines(open).find((e) => e.classList.contains("strong")) || lines(open)[0]);
    }
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const active = document.activeElement;
    const pane = active.closest?.(".pane");
    const step = active.closest?.("tbody tr");
    if (event.key.startsWith("Arrow") && (pane || step || active === document.body)) {
      if (pane) inPane(pane, event.key);
      else inTable(step || row, event.key);
    } else if (event.key === "Enter" && (step || (pane && cursor))) {
      choose(step || cursor);
    } else if (event.key === "Escape") {
      pinned = null;
      clear();
    } else if (event.key >= "1" && event.key <= "6") {
      toggle(Number(event.key) - 1);
    } else if (event.key === "[" || event.key === "]") {
      openGraph(Number(graph) + (event.key === "]" ? 1 : -1));
      if (row) row.focus();
    } else return;
    event.preventDefault();
  });

  const asked = all("tbody tr").find((each) => "#" + each.dataset.row === location.hash);
  openGraph(0);
  if (asked) select(asked);
  if (row) choose(row);
})();
