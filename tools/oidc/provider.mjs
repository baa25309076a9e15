// An OpenID Connect provider of others (oidc-provider on npm) for the console's tests: `node provider.mjs PLACE SETTINGS`.
//
// PLACE is the directory whose node_modules has it. SETTINGS is JSON: clients, as the provider takes them, and the
// lifetime of tokens in seconds. Every name and password log in. A login that names a resource gets an access token
// that is a JWT for the audience "kafka", others an opaque one. It prints "ready ISSUER", and ends with its input.
import { generateKeyPairSync } from "node:crypto";
import { createServer } from "node:http";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [place, text] = process.argv.slice(2);
const settings = JSON.parse(text);
const { Provider } = await import(pathToFileURL(resolve(place, "node_modules/oidc-provider/lib/index.js")));
const { privateKey } = generateKeyPairSync("ec", { namedCurve: "P-256" });
const server = createServer();

server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: settings.clients,
    clientDefaults: { id_token_signed_response_alg: "ES256" },
    cookies: { keys: ["of the tests alone"] },
    jwks: { keys: [{ ...privateKey.export({ format: "jwk" }), use: "sig", alg: "ES256", kid: "tests" }] },
    pkce: { required: () => true },
    ttl: { AccessToken: settings.lifetime_s, IdToken: settings.lifetime_s },
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    features: {
      devInteractions: { enabled: true },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: () => ({
          scope: "",
          audience: "kafka",
          accessTokenTTL: settings.lifetime_s,
          accessTokenFormat: "jwt",
          jwt: { sign: { alg: "ES256" } },
        }),
        useGrantedResource: () => true,
      },
    },
  });
  server.on("request", provider.callback());
  console.log(`ready ${issuer}`);
});
process.stdin.resume().on("end", () => process.exit(0));
