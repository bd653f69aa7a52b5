// Under the mouse, a finger or the keyboard's focus a number explains itself: the products that it is the sum of appear
// beside it, and the numbers that it is computed from are marked. describe makes the function that finds both. A table
// may show a part of its matrix; data-rows and data-cols are then the indices, with -1 for the gap. data-q is the query of
// steps 4 to 7.
const explain = function (root, describe) {
  if (root.dataset.on) return null;
  root.dataset.on = 1;
  const fragment = root.closest(".pyattn");
  const areas = [root, ...fragment.querySelectorAll("[data-of='" + root.id + "']")];
  const model = attention(JSON.parse(root.querySelector("script[type='application/json']").textContent));
  const {data} = model, about = describe(model);
  let tip = null, marked = [], byKey = false, mouse = null;

  // Places: of a cell in its whole matrix, in the row convention; null in a gap
  function placeIn(table) {
    const rows = table.dataset.rows && table.dataset.rows.split(" "), above = table.tHead ? 1 : 0;
    const columns = table.dataset.cols && table.dataset.cols.split(" "), before = table.querySelector("tbody th") ? 1 : 0;
    const query = table.dataset.q === undefined ? null : +table.dataset.q;
    return cell => {
      const r = cell.parentNode.rowIndex - above, c = cell.cellIndex - before;
      const place = [rows ? +rows[r] : r, columns ? +columns[c] : c];
      if (place[0] < 0 || place[1] < 0) return null;
      if (data.column && !/score_weight$/.test(table.dataset.m)) place.reverse();  // it is the same in both conventions
      if (query !== null && table.dataset.m !== "weighted_values") place[0] = query;
      return {i: place[0], j: place[1], q: query};
    };
  }
  function clear() {
    marked.forEach(cell => cell.classList.remove("pa-from", "pa-here"));
    marked = [];
    if (tip) tip.remove();
    tip = null;
  }
  function mark(cell, kind) {
    cell.classList.add(kind);
    marked.push(cell);
  }
  function markAll([name, i, j]) {
    const [key, query] = Array.isArray(i) ? i : [i, null];
    areas.forEach(area => area.querySelectorAll("table[data-m='" + name + "']").forEach(table => {
      const placeOf = placeIn(table);
      table.querySelectorAll("td").forEach(cell => {
        const place = placeOf(cell);
        if (!place || (query !== null && place.q !== query)) return;
        if ((key < 0 || key === place.i) && (j < 0 || j === place.j)) mark(cell, "pa-from");
      });
    }));
  }
  function show([words, from], area, cell) {
    clear();
    tip = document.createElement("div");
    tip.className = "pa-tip";
    tip.setAttribute("role", "tooltip");
    tip.textContent = words;
    area.appendChild(tip);
    from.forEach(markAll);
    if (cell) mark(cell, "pa-here");
  }
  function put(x, y) {
    const high = tip.offsetHeight;
    tip.style.left = Math.max(4, Math.min(x, window.innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = (y + high + 8 > window.innerHeight ? Math.max(4, y - high - 40) : y) + "px";
  }
  function showCell(cell, area, words) {
    const table = cell.closest("table"), place = placeIn(table)(cell);
    if (!place) return clear();
    const found = about(table.dataset.m, place.i, place.j, place.q);
    show(words ? [words, []] : found, area, cell);
    const box = cell.getBoundingClientRect();
    put(box.left, box.bottom + 8);
    return tip.textContent;
  }
  function showPixel(image, area, event) {
    const [rows, columns] = image.dataset.n.split(" "), box = image.getBoundingClientRect();
    const index = (share, count) => Math.max(0, Math.min(Math.floor(share * count), count - 1));
    const r = index((event.clientY - box.top) / box.height, rows);
    const c = index((event.clientX - box.left) / box.width, columns);
    show(data.column ? about("weights", c, r) : about("weights", r, c), area);
    put(event.clientX + 12, event.clientY + 16);
  }
  function isMoved(event) {
    const before = mouse;
    mouse = event.screenX + " " + event.screenY;
    return before !== null && before !== mouse;
  }
  function over(event) {
    const area = event.currentTarget, found = event.target.closest && event.target.closest("td,img");
    if (isMoved(event)) byKey = false;
    if (byKey) return;  // the keyboard scrolls the page below a mouse at rest
    if (!found || !area.contains(found)) clear();
    else if (found.tagName === "IMG") showPixel(found, area, event);
    else showCell(found, area);
  }

  // Keyboard: one stop of Tab for each table, arrow keys inside it
  const target = cell => cell.querySelector("input") || cell;
  const spoken = document.createElement("div");
  spoken.className = "pa-spoken";
  spoken.setAttribute("aria-live", "polite");
  root.appendChild(spoken);
  function focusable(table) {
    table.querySelectorAll("td:not(.pa-gap)").forEach((cell, n) => target(cell).setAttribute("tabindex", n ? -1 : 0));
  }
  function step(cell, down, right) {
    let r = cell.parentNode.rowIndex, c = cell.cellIndex, next = null;
    const rows = cell.closest("table").rows;
    do {
      r += down;
      c += right;
      next = rows[r] && rows[r].cells[c];
    } while (next && next.className.includes("pa-gap"));
    return next && next.tagName === "TD" ? next : null;
  }
  const ARROWS = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};
  function inText(input, right) {
    if (input.type !== "text" || !right) return false;
    if (input.selectionStart === 0 && input.selectionEnd === input.value.length) return false;
    return input.selectionStart !== (right > 0 ? input.value.length : 0);
  }
  function press(event) {
    byKey = true;
    if (event.key === "Escape") return clear();
    const cell = event.target.closest("td"), arrow = ARROWS[event.key];
    if (!cell || !arrow || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    if (inText(event.target, arrow[1])) return;
    const next = step(cell, ...arrow);
    event.preventDefault();
    if (!next) return;
    target(cell).setAttribute("tabindex", -1);
    target(next).setAttribute("tabindex", 0);
    target(next).focus();
  }
  areas.forEach(area => {
    area.querySelectorAll("table").forEach(focusable);
    area.addEventListener("mouseover", over);
    area.addEventListener("click", over);
    area.addEventListener("mousemove", event => {
      if (!tip || event.target.tagName === "IMG") over(event);
    });
    area.addEventListener("mousedown", () => { byKey = false; });
    area.addEventListener("mouseleave", () => { if (!byKey) clear(); });
    area.addEventListener("keydown", press);
    area.addEventListener("focusin", event => {
      const cell = event.target.closest("td");
      if (!cell || !byKey) return;
      const words = showCell(cell, area);
      spoken.textContent = words || "";
    });
    area.addEventListener("focusout", clear);
  });
  document.addEventListener("keydown", () => { byKey = true; }, true);  // Tab from outside
  document.addEventListener("mousemove", event => { if (isMoved(event)) byKey = false; }, true);
  fragment.querySelectorAll(".pa-how[hidden]").forEach(words => { words.hidden = false; });
  return {model, placeIn, focusable, showCell, spoken, clear, fragment, areas};
};
