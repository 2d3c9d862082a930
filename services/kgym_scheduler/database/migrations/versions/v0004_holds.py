"""Names that attempts hold."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Create the table of named locks."""
    op.create_table(
        "holds",
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("lease", sa.Uuid, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_holds"),
    )
