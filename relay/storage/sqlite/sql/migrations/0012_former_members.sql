-- For the end of a group and for a start: who was a member, group by group.
CREATE INDEX former_members_group ON former_members (grp);
