"""Steps have names."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the column: steps had none until now."""
    op.add_column("steps", sa.Column("name", sa.String(60)))
