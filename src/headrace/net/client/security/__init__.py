"""How our own client proves who it is, and has a broker prove the same: TLS, and SASL.

`settings.ClientSecurity` is what a client is given; `dialing.dial` opens a connection for any protocol with it.
"""

from headrace.net.client.security.settings import PLAIN as PLAIN
from headrace.net.client.security.settings import ClientSecurity as ClientSecurity
