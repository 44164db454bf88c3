// An authorization server for tests: npm's `oidc-provider` on a free loopback port.
//
// Run as `node issuer.mjs NODE_MODULES OPTIONS`, with OPTIONS in JSON. The first line of stdout is the server's URL.
// `../src/issuer.rs` describes the options and what `/__control/…` does.

import crypto from 'node:crypto';
import http from 'node:http';
import { createRequire } from 'node:module';
import { text } from 'node:stream/consumers';
import { setTimeout as pause } from 'node:timers/promises';

const [modules, given] = process.argv.slice(2);
const { Provider, errors } = createRequire(`${modules}/`)('oidc-provider');

const state = {
  // Can be changed at run time.
  down: false,
  hold_ms: 0,
  refuse_refresh: false,
  refuse_resource: false,
  rotate: true,
  opaque: false,
  consent: true,
  lifetime: 3600,
  withheld: [],
  accounts: {},
  answers: {},
  // Fixed at startup.
  clients: [],
  scopes: ['mcp:call', 'mcp:read', 'mcp:manage'],
  algorithm: 'RS256',
  ...JSON.parse(given ?? '{}'),
};
const oidcScopes = ['openid', 'offline_access', 'email', 'groups', 'profile'];
const counts = {};
const secrets = new Set();
const registered = new Set();
const cookieKey = crypto.randomBytes(32).toString('hex');
let issuer;
let keys = [];
let provider;

// --- keys ---

function addKey() {
  const { privateKey } = state.algorithm === 'ES256'
    ? crypto.generateKeyPairSync('ec', { namedCurve: 'P-256' })
    : crypto.generateKeyPairSync('rsa', { modulusLength: 2048 });
  const kid = crypto.randomBytes(8).toString('hex');
  keys = [{ ...privateKey.export({ format: 'jwk' }), kid, use: 'sig', alg: state.algorithm }];
}

const encode = (value) => Buffer.from(typeof value === 'string' ? value : JSON.stringify(value)).toString('base64url');

// Signs any header and claims, valid or not, with the newest key.
function sign({ header = {}, claims }) {
  const [key] = keys;
  const full = { typ: 'at+jwt', alg: key.alg, kid: key.kid, ...header };
  const text = `${encode(full)}.${encode(claims)}`;
  const jwk = crypto.createPrivateKey({ key, format: 'jwk' });
  if (full.alg === 'none') return `${text}.`;
  if (full.alg.startsWith('HS')) {
    const secret = crypto.createPublicKey(jwk).export({ type: 'spki', format: 'pem' });
    return `${text}.${crypto.createHmac('sha256', secret).update(text).digest('base64url')}`;
  }
  const signature = crypto.sign('sha256', text, { key: jwk, dsaEncoding: 'ieee-p1363' });
  return `${text}.${signature.toString('base64url')}`;
}

// --- the provider ---

const claimsOf = (account) => ({
  sub: account,
  email: `${account}@example.com`,
  email_verified: true,
  groups: [],
  ...state.accounts[account],
});

const page = (title, body) => `<!doctype html><meta charset="utf-8"><title>${title}</title><h1>${title}</h1>${body}`;
const escape = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

function build() {
  provider = new Provider(issuer, {
    jwks: { keys },
    clients: state.clients,
    clientDefaults: { grant_types: ['authorization_code', 'refresh_token'], token_endpoint_auth_method: 'none' },
    clientAuthMethods: ['client_secret_basic', 'client_secret_post', 'private_key_jwt', 'none'],
    enabledJWA: { idTokenSigningAlgValues: ['RS256', 'ES256'], clientAuthSigningAlgValues: ['RS256', 'ES256', 'PS256', 'EdDSA'] },
    scopes: [...oidcScopes, ...state.scopes],
    claims: { email: ['email', 'email_verified'], groups: ['groups'], profile: ['name'] },
    conformIdTokenClaims: false,
    cookies: { keys: [cookieKey] },
    pkce: { required: () => true },
    interactions: { url: (_ctx, interaction) => `/interaction/${interaction.uid}` },
    findAccount: (_ctx, id) => ({ accountId: id, claims: () => claimsOf(id) }),
    extraTokenClaims: (_ctx, token) => {
      if (!token.accountId) return undefined;
      const { sub, ...claims } = claimsOf(token.accountId);
      return claims;
    },
    issueRefreshToken: (_ctx, client) => client.grantTypeAllowed('refresh_token'),
    expiresWithSession: () => false,
    rotateRefreshToken: () => {
      if (state.refuse_refresh) throw new errors.InvalidGrant('the refresh token was revoked');
      return state.rotate;
    },
    loadExistingGrant: async (ctx) => {
      const { client, session, provider: current } = ctx.oidc;
      const id = ctx.oidc.result?.consent?.grantId ?? session.grantIdFor(client.clientId);
      if (id) return current.Grant.find(id);
      return state.consent ? undefined : grantAll(session.accountId, client.clientId, ctx.oidc.params);
    },
    ttl: {
      AccessToken: () => state.lifetime,
      ClientCredentials: () => state.lifetime,
      RefreshToken: () => 86400,
      IdToken: () => 3600,
      Interaction: () => 3600,
      Session: () => 86400,
      Grant: () => 86400,
      DeviceCode: () => 600,
    },
    // The document of a client id that is a URL gets 404, without a network request.
    fetch: async () => new Response('no such document', { status: 404 }),
    renderError: (ctx, out) => {
      ctx.type = 'html';
      ctx.body = page('Error', `<p id="error">${escape(out.error)}</p><p>${escape(out.error_description ?? '')}</p>`);
    },
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      dPoP: { enabled: true, nonceSecret: crypto.randomBytes(32), requireNonce: () => true },
      clientIdMetadataDocument: { enabled: true, ack: 'draft-02' },
      introspection: { enabled: true, allowedPolicy: () => true },
      registration: { enabled: true },
      revocation: { enabled: true, allowedPolicy: (_ctx, client, token) => token.clientId === client.clientId },
      rpInitiatedLogout: { enabled: false },
      resourceIndicators: {
        enabled: true,
        useGrantedResource: () => true,
        getResourceServerInfo: (_ctx, resource) => {
          if (state.refuse_resource) throw new errors.InvalidTarget('AADSTS9010010: the resource parameter does not match the scopes');
          return {
            scope: state.scopes.join(' '),
            audience: resource,
            accessTokenTTL: state.lifetime,
            accessTokenFormat: state.opaque ? 'opaque' : 'jwt',
            jwt: { sign: { alg: state.algorithm } },
          };
        },
      },
      deviceFlow: {
        enabled: true,
        userCodeInputSource: (ctx, form, _out, error) => {
          ctx.body = page('Device', `${error ? '<p id="error">wrong code</p>' : ''}${form}<button type="submit" form="op.deviceInputForm">Continue</button>`);
        },
        userCodeConfirmSource: (ctx, form, client, _device, code) => {
          ctx.body = page('Confirm', `<p>${escape(client.clientId)}</p><code>${escape(code)}</code>${form}<button type="submit" form="op.deviceConfirmForm">Continue</button>`);
        },
        successSource: (ctx) => {
          ctx.body = page('Done', '<p id="done">signed in</p>');
        },
      },
    },
  });
  provider.use(async (ctx, next) => {
    await next();
    const name = ctx.oidc?.route ?? ctx.path;
    counts[name] = (counts[name] ?? 0) + 1;
    const grant = name === 'token' && ctx.oidc.params?.grant_type;
    if (grant) counts[`token:${grant}`] = (counts[`token:${grant}`] ?? 0) + 1;
    if (name === 'registration' && ctx.body?.client_id) registered.add(ctx.body.client_id);
    if (name === 'token') {
      const { code, code_verifier: verifier, refresh_token: used } = ctx.oidc.params ?? {};
      const { access_token: access, refresh_token: refresh, id_token: id } = ctx.body ?? {};
      for (const value of [code, verifier, used, access, refresh, id]) if (value) secrets.add(value);
      if (state.hold_ms) await pause(state.hold_ms);
    }
  });
  provider.on('server_error', (_ctx, error) => console.error(error));
}

async function grantAll(accountId, clientId, params) {
  const grant = new provider.Grant({ accountId, clientId });
  grant.addOIDCScope(params.scope ?? oidcScopes.join(' '));
  grant.addOIDCClaims(['email', 'email_verified', 'groups', 'name']);
  for (const resource of [params.resource ?? []].flat()) {
    grant.addResourceScope(resource, state.scopes.filter((scope) => !state.withheld.includes(scope)).join(' '));
    if (state.withheld.length) grant.rejectResourceScope(resource, state.withheld.join(' '));
  }
  await grant.save();
  return grant;
}

// --- the login and consent forms ---

async function interaction(request, response, path) {
  const details = await provider.interactionDetails(request, response);
  const { uid, prompt, params, session } = details;
  if (request.method === 'GET') {
    response.setHeader('content-type', 'text/html; charset=utf-8');
    if (prompt.name === 'login') {
      const hint = params.login_hint ? ` value="${escape(params.login_hint)}"` : '';
      response.end(page('Sign in', `<form method="post" action="/interaction/${uid}/login"><label>Account <input name="account" required autofocus${hint}></label><label>Password <input name="password" type="password"></label><button id="login">Sign in</button></form>`));
    } else {
      response.end(page('Allow', `<p><b id="client">${escape(params.client_id)}</b> asks <b id="account">${escape(session.accountId)}</b> for: <span id="scope">${escape(params.scope ?? '')}</span></p><form method="post" action="/interaction/${uid}/confirm"><button id="allow">Allow</button></form><form method="post" action="/interaction/${uid}/abort"><button id="deny">Deny</button></form>`));
    }
    return;
  }
  const form = new URLSearchParams(await text(request));
  let result;
  if (path.endsWith('/login')) {
    result = { login: { accountId: form.get('account') } };
  } else if (path.endsWith('/confirm')) {
    const grant = await grantAll(session.accountId, params.client_id, params);
    result = { consent: { grantId: grant.jti } };
  } else {
    result = { error: 'access_denied', error_description: 'the person refused' };
  }
  await provider.interactionFinished(request, response, result, { mergeWithLastSubmission: true });
}

// --- control ---

// Acts as a user with a browser: follows `url` through the forms until it reaches another host's address or a page without forms.
async function signIn({ url, account, deny = false }) {
  const jar = new Map();
  let next = { url };
  for (let steps = 0; steps < 20; steps += 1) {
    if (!next.url.startsWith(`${issuer}/`)) return { location: next.url };
    const answer = await fetch(next.url, {
      method: next.body === undefined ? 'GET' : 'POST',
      body: next.body,
      redirect: 'manual',
      headers: { cookie: [...jar].map(([k, v]) => `${k}=${v}`).join('; ') },
    });
    for (const cookie of answer.headers.getSetCookie()) {
      const [, name, value] = /^([^=]+)=([^;]*)/.exec(cookie);
      jar.set(name, value);
    }
    const location = answer.headers.get('location');
    if (location) {
      next = { url: new URL(location, next.url).href };
      continue;
    }
    const html = await answer.text();
    const forms = [...html.matchAll(/<form[^>]*action="([^"]*)"[^>]*>(.*?)<\/form>/gs)];
    const form = forms.find(([, action]) => action.endsWith('/abort') === deny) ?? forms[0];
    if (!form) return { status: answer.status, html };
    const body = new URLSearchParams();
    for (const [input] of form[2].matchAll(/<input[^>]*>/gs)) {
      const name = /name="([^"]*)"/.exec(input)[1];
      body.set(name, /value="([^"]*)"/.exec(input)?.[1] ?? '');
    }
    if (body.has('account')) body.set('account', account);
    next = { url: new URL(form[1], next.url).href, body };
  }
  throw new Error('the sign-in does not end');
}

const control = {
  set: (body) => Object.assign(state, body) && {},
  counts: () => counts,
  secrets: () => [...secrets],
  rotate: () => {
    addKey();
    build();
    return {};
  },
  forget: async () => {
    for (const id of registered) await provider.Client.adapter.destroy(id);
    registered.clear();
    return {};
  },
  token: (body) => ({ token: sign(body) }),
  'sign-in': signIn,
};

async function serve(request, response) {
  const { pathname } = new URL(request.url, issuer);
  if (pathname.startsWith('/__control/')) {
    const body = await text(request);
    const answer = await control[pathname.slice('/__control/'.length)](body ? JSON.parse(body) : {});
    response.setHeader('content-type', 'application/json');
    response.end(JSON.stringify(answer));
    return;
  }
  if (state.down) {
    request.socket.destroy();
    return;
  }
  const answer = state.answers[pathname];
  if (answer) {
    counts[pathname] = (counts[pathname] ?? 0) + 1;
    response.writeHead(answer.status ?? 200, answer.headers ?? { 'content-type': 'application/json' });
    response.end(typeof answer.body === 'string' ? answer.body : JSON.stringify(answer.body));
    return;
  }
  if (pathname.startsWith('/interaction/')) {
    await interaction(request, response, pathname);
    return;
  }
  await provider.callback()(request, response);
}

const server = http.createServer((request, response) => {
  serve(request, response).catch((error) => {
    console.error(error);
    if (!response.headersSent) response.writeHead(500, { 'content-type': 'text/plain' });
    response.end(String(error));
  });
});
server.listen(0, '127.0.0.1', () => {
  issuer = `http://${state.host ?? '127.0.0.1'}:${server.address().port}`;
  addKey();
  build();
  console.log(`issuer ${issuer}`);
});
