"""NIP-29: what groups are and what their events do, as a fold: actions, rules, group, notices.

May enter: what decides or describes a group from events and values. Pure: no clock, no I/O, no
store; `now`, roles and looked-up rows arrive in a GroupContext.
"""
