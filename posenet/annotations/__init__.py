"""COCO annotation files: checked columns, people and masks; linting, repair, import, drafting a skeleton."""
