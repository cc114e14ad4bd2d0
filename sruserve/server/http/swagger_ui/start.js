// A script of its own, because the page allows no inline scripts.
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null, // by default it is a public server
});
