// What the pages need beyond htmx: they keep still while nobody looks, and say when the server is gone.
(function () {
  "use strict";
  var body = document.body;
  body.classList.remove("no-script");

  // A page in a background tab asks for nothing; a page on which something is being typed is not replaced.
  body.addEventListener("htmx:beforeRequest", function (event) {
    var source = event.detail.elt;
    if (!source.hasAttribute("data-live")) return;
    var focused = document.activeElement;
    var typing = focused && source.contains(focused) && /^(INPUT|SELECT|TEXTAREA)$/.test(focused.tagName);
    var selecting = String(window.getSelection() || "") !== "";
    if (document.hidden || typing || selecting) event.preventDefault();
  });

  function lost(is) { body.classList.toggle("is-lost", is); }
  body.addEventListener("htmx:sendError", function () { lost(true); });
  body.addEventListener("htmx:timeout", function () { lost(true); });
  body.addEventListener("htmx:afterOnLoad", function () { lost(false); });
  body.addEventListener("htmx:responseError", function (event) {
    // The session is over: the server answers with the sign-in page.
    if (event.detail.xhr.status === 401) location.reload();
    else lost(true);
  });

  // Buttons that cannot be taken back ask first.
  document.addEventListener("submit", function (event) {
    var question = event.target.getAttribute("data-confirm");
    if (question && !window.confirm(question)) event.preventDefault();
  });
})();
