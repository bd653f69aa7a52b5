// Tokens, lines and buttons are in the page already. This script marks those that belong to a token under the mouse, a
// finger or the keyboard's focus.
(figure => {
  const svg = figure.querySelector("svg"), note = figure.querySelector("[role=status]"), hint = note.textContent;
  const tokens = [...svg.querySelectorAll("[data-s]")], lines = [...svg.querySelectorAll("line")];
  const buttons = [...figure.querySelectorAll("button")];
  const isPressed = button => button.getAttribute("aria-pressed") === "true";
  const isHidden = head => buttons.length > 0 && !isPressed(buttons[head]);
  const focused = () => tokens.find(token => token === document.activeElement) ?? null;
  let here = null;

  function show(token) {
    const side = token && token.dataset.s, other = side === "q" ? "k" : "q", shares = {};
    here = token;
    svg.classList.toggle("pa-on", token !== null);
    for (const line of lines) {
      const off = isHidden(+line.dataset.h), hit = token !== null && line.dataset[side] === token.dataset.n;
      const at = line.dataset[other];
      line.classList.toggle("pa-off", off);
      line.classList.toggle("pa-hit", hit);
      if (hit && !off) shares[at] = Math.max(shares[at] ?? 0, +line.getAttribute("stroke-opacity"));
    }
    for (const one of tokens) {
      const share = token !== null && one.dataset.s === other ? shares[one.dataset.n] ?? 0 : 0;
      one.classList.toggle("pa-here", one === token);
      one.querySelector("rect").style.fillOpacity = 0.45 * share;
    }
    const named = token === null ? [] : token.getAttribute("aria-label").split("\n");
    note.textContent = token === null ? hint : named.filter((_, head) => !isHidden(head)).join("\n");
  }

  tokens.forEach((token, at) => {
    token.addEventListener("mouseenter", () => show(token));
    token.addEventListener("mouseleave", () => show(focused()));
    token.addEventListener("focus", () => show(token));
    token.addEventListener("blur", () => show(null));
    token.addEventListener("click", () => { token.focus(); show(token); });
    token.addEventListener("keydown", event => {
      const next = tokens[{ArrowDown: at + 1, ArrowUp: at - 1}[event.key]];
      if (event.key === "Escape") token.blur();
      if (event.key === "Enter" || event.key === " ") { show(token); event.preventDefault(); }
      if (next) { next.focus(); event.preventDefault(); }
    });
  });
  for (const button of buttons) {
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(!isPressed(button)));
      show(here);
    });
  }
})(document.currentScript.parentElement);
